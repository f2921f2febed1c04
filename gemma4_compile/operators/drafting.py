"""The end of a drafter: candidates from clusters of the vocabulary, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.lookup import RowLookup
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import ONE, Rows
from gemma4_compile.operators.tir import LocalVar, OneRow, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

NO_TOKEN = float(1 << 24)
"""Above every token id, and exact in float32."""
LOGITS_OF_BLOCK = 4096  # at most, of a choice in one launch
RUN = 1024  # logits of a block where there are more: four a thread, so that many are read at once
_KEY_OF_ZERO = 0x807FFFFF  # infinity's is the highest then, and keys of positive NaNs wrap to 0


def key_of(score: Expr) -> Expr:
    """A float32 as uint32 that orders as the scores do, NaN before all numbers, 0 and -0 alike.

    Integers order every bit pattern alike on every device, where a comparison with a NaN is false
    on some and undefined on others.
    """
    bits = bind(tirx.reinterpret("uint32", score))
    magnitude = bind(tirx.bitwise_and(bits, tirx.const(0x7FFFFFFF, "uint32")))
    zero = tirx.const(_KEY_OF_ZERO, "uint32")
    return tirx.Select(bits == magnitude, zero + magnitude, zero - magnitude)


@dataclass(frozen=True)
class ClusterTokens(Operator):
    """The tokens of the `top_k` clusters with the highest scores, of equal ones the lower index.

    Always those of `top_k` clusters: one whose score is no number comes after all numbers.

    Arguments: scores (rows, clusters) f32; ordering (vocab,) f32, the ids of the tokens cluster by
    cluster. Result: tokens (top_k * vocab / clusters,) int32, the best cluster's first; of other
    rows than one an axis of rows in front.
    """

    kind: ClassVar[str] = "cluster_tokens"
    clusters: int
    top_k: int
    vocab: int
    rows: Rows = ONE

    @property
    def cluster_size(self) -> int:
        """Tokens of a cluster."""
        return self.vocab // self.clusters

    @property
    def count(self) -> int:
        """Tokens of the result."""
        return self.top_k * self.cluster_size

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "scores":  # of which some are equal
            return np.round(rng.normal(0, 1, shape), 1)
        return rng.permutation(self.vocab) if name == "ordering" else None

    def tolerance(self, result: str) -> float:
        return 0.0

    def definition(self) -> tirx.PrimFunc:
        size, n = self.cluster_size, self.rows.extent()
        with function(scheduled=False) as build:
            scores = build.arg("scores", (n, self.clusters), "float32")
            ordering = build.arg("ordering", (self.vocab,), "float32")
            tokens = build.arg("tokens", (*self.rows.lead(n), self.count), "int32")
            keys = T.alloc_buffer((self.clusters,), "uint32", scope="local")
            is_left = T.alloc_buffer((self.clusters,), "int32", scope="local")
            with T.serial(0, n) as i:
                with T.serial(0, self.clusters) as c:
                    store(keys, key_of(scores[i, c]), c)
                    store(is_left, i32(1), c)
                with T.serial(0, self.top_k) as k:
                    best = LocalVar("int32", i32(-1))
                    with T.serial(0, self.clusters) as c, when(is_left[c] == 1):
                        higher = keys[c] > keys[tirx.max(best.value, i32(0))]
                        with when(tirx.any(best.value < 0, higher)):
                            best.set(i32(c))
                    with T.serial(0, size) as j:
                        token = ordering[best.value * size + j].astype("int32")
                        store(tokens, token, *self.rows.lead(i), k * size + j)
                    store(is_left, i32(0), best.value)
        return build.result


@dataclass(frozen=True)
class CandidateLogits(RowLookup):
    """Logits of some tokens: products of a state with their rows of the head.

    The row splits hold the rows from `row_begin` on. A token outside of them has the logit 0 or,
    with `accumulate`, that of a previous result (see `Embedding`). Arguments: x (rows, cols)
    in_dtype; tokens (count,) int32, of other rows than one (rows, count); the tensors of all row
    splits; with `accumulate` the previous result. Result: (rows, count) f32.
    """

    IDS: ClassVar[str] = "tokens"
    kind: ClassVar[str] = "candidate_logits"
    count: int
    layout: WeightLayout
    in_dtype: str
    row_begin: int = 0
    accumulate: bool = False
    rows: Rows = ONE

    def definition(self) -> tirx.PrimFunc:
        layout, n = self.layout, self.rows.extent()
        shape = n, self.count
        x = te.placeholder((n, self.cols), self.in_dtype, name="x")
        tokens = te.placeholder((*self.rows.lead(n), self.count), "int32", name="tokens")
        weights = layout.placeholders()
        previous = te.placeholder(shape, "float32", name="previous")
        k = te.reduce_axis((0, self.cols), name="k")

        def row(i: Expr, c: Expr) -> tuple[Expr, Expr]:
            own = tokens[(*self.rows.lead(i), c)] - self.row_begin
            return own, tirx.all(own >= 0, own < layout.rows)

        def product(i: Expr, c: Expr) -> Expr:
            own, is_inside = row(i, c)
            value = tirx.if_then_else(is_inside, layout.value(weights, own, k), f32(0.0))
            return te.sum(as_f32(x[i, k]) * value, axis=k)

        logits = te.compute(shape, product, name="logits")
        if not self.accumulate:
            return te_prim_func([x, tokens, *weights, logits])
        joined = te.compute(
            shape, lambda i, c: tirx.if_then_else(row(i, c)[1], logits[i, c], previous[i, c])
        )
        return te_prim_func([x, tokens, *weights, previous, joined])


@dataclass(frozen=True)
class BestToken(Operator):
    """The token with the highest logit, of equal ones the lowest id.

    Always a token, whatever the logits are: the first where none is a number.

    Arguments: logits (rows, count) f32; tokens (count,) int32 if `listed`, of other rows than one
    (rows, count), else each logit's id is its index. Result: (rows,) int32.
    """

    kind: ClassVar[str] = "best_token"
    count: int
    listed: bool
    rows: Rows = ONE

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "logits":  # of which some are equal, the highest too
            return np.minimum(np.round(rng.normal(0, 1, shape), 1), 2.0)
        if name == "token":  # no token, so that any is a change
            return np.full(shape, -1)
        if name != "tokens":
            return None
        ids = [rng.permutation(4 * self.count)[: self.count] for _ in range(shape[0])]
        return ids[0] if len(shape) == 1 else np.stack(ids)

    def tolerance(self, result: str) -> float:
        return 0.0

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        ids = *self.rows.lead(n), self.count
        with function(scheduled=False) as build:
            logits = build.arg("logits", (n, self.count), "float32")
            tokens = build.arg("tokens", ids, "int32") if self.listed else None
            token = build.arg("token", (n,), "int32")
            with T.serial(0, n) as i:
                own = tokens if tokens is None else row_of(tokens, self.rows, i)
                _, found = _best(OneRow(logits, i), own, i32(0), i32(self.count))
                store(token, found.value, i)
        return build.result


@dataclass(frozen=True)
class BestTokenPartials(Operator):
    """First half of a choice among many logits: the highest of each run and the lowest id with it.

    `BestToken` of the results, listed, is that of all logits. A run without numbers has its first
    id, and a logit below all.

    Arguments: logits (rows, count) f32, each one's id its index. Results: (rows, blocks) f32;
    (blocks,) int32, of other rows than one (rows, blocks).
    """

    kind: ClassVar[str] = "best_token_partials"
    count: int
    rows: Rows = ONE

    @property
    def blocks(self) -> int:
        """Runs of `RUN` logits (the last may be shorter)."""
        return -(-self.count // RUN)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "logits":  # of which some are equal, the highest too
            return np.minimum(np.round(rng.normal(0, 1, shape), 1), 2.0)
        return np.full(shape, -1)  # no token, and no logit of a run

    def tolerance(self, result: str) -> float:
        return 0.0

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            logits = build.arg("logits", (n, self.count), "float32")
            highest = build.arg("highest", (n, self.blocks), "float32")
            tokens = build.arg("tokens", (*self.rows.lead(n), self.blocks), "int32")
            with T.serial(0, n) as i, T.serial(0, self.blocks) as b:
                begin = bind(i32(b) * RUN)
                end = tirx.min(begin + RUN, i32(self.count))
                best, found = _best(OneRow(logits, i), None, begin, end)
                store(highest, best.value, i, b)
                store(tokens, found.value, *self.rows.lead(i), b)
        return build.result


def row_of(tokens: Buffer, rows: Rows, row: Index) -> Buffer:
    """A row of tokens, which have an axis of rows where these are not one."""
    return OneRow(tokens, row) if rows.lead(row) else tokens


def _best(
    logits: Buffer, tokens: Buffer | None, begin: Expr, end: Expr
) -> tuple[LocalVar, LocalVar]:
    """The highest of a row's logits from `begin` to `end`, and the lowest id that has it."""
    best = LocalVar("float32", f32(LOWEST))
    found = LocalVar("int32", begin if tokens is None else tokens[begin])
    with T.serial(begin, end) as c:
        logit, own = bind(logits[c]), bind(i32(c) if tokens is None else tokens[c])
        equal = bind(tirx.all(logit == best.value, own < found.value))
        with when(tirx.any(logit > best.value, equal)):
            best.set(logit)
            found.set(own)
    return best, found
