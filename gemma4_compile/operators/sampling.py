"""Sampling, under the client's own function names, without sorting the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator, TensorSpec, symbolic_rows
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import ONE, Rows
from gemma4_compile.operators.spreads import FLOAT_BITS, LSE, Spread, around_zero
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

MASKED = (
    -1.0e30
)  # a forbidden token's logit; divided by the smallest temperature (1e-6) it is still finite
RUN = 2048  # neighbouring tokens that a histogram sorts
BINS = 256
BIN_SHIFT = 22  # a bin is half an octave wide; 1.0 falls into the last but one
HISTOGRAM = ("ordered", "sums", "counts", "masses")  # what it gives, by name
_FAR = -80.0  # below this a weight counts as exactly 0; exp(-80) is still a normal float32


def weight_of(logit: Expr, highest: Expr, temperature: Expr) -> Expr:
    """``exp((logit - highest) / temperature)``, exactly 0 at the far end."""
    scaled = (logit - highest) / temperature
    return tirx.Select(scaled > f32(_FAR), tirx.exp(tirx.max(scaled, f32(_FAR))), f32(0.0))


def _example(
    name: str, shape: tuple[int, ...], vocab: int, rng: np.random.Generator
) -> Array | None:
    """Example inputs of the sampler: logits, settings of a request, tokens."""
    fixed = {"temperature": 0.8, "uniform": 0.37, "top_p": 0.95, "penalties": (0.5, 0.25, 1.25)}
    if name in fixed:
        return np.broadcast_to(np.array(fixed[name]), shape)
    if name == "probs":
        weights = np.exp(rng.normal(0, 3, shape))
        return np.array(weights / weights.sum(axis=-1, keepdims=True))
    if name == "logits":
        return rng.normal(0, 6, shape)
    if name == "partials":  # maximum, sum of weights
        return np.stack([rng.uniform(30, 31, shape[:-1]), rng.uniform(1, 2, shape[:-1])], axis=-1)
    if name in ("seq", "seq_ids", "pos2seq"):
        return np.zeros(shape)
    if name == "token":
        return rng.permutation(vocab)[: int(np.prod(shape))].reshape(shape)
    if name == "count":
        return rng.integers(1, 5, shape)
    return rng.integers(-(2**31), 2**31, shape) if name == "mask" else None


@dataclass(frozen=True)
class VocabularyOperator(Operator):
    """An operator over `vocab` tokens; its example inputs are those of a request."""

    vocab: int

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return _example(name, shape, self.vocab, rng)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        if name == "probs":  # their sum is about 1
            return (Spread(FLOAT_BITS, 0, 2.0**-10 / 2 ** ceil(log2(self.vocab))),)
        if name == "logits":
            return (around_zero(16.0),)
        return LSE if name == "partials" else super().known_spreads(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return np.full(shape, 0.75) if name == "temperature" else None


@dataclass(frozen=True)
class SoftmaxPartials(VocabularyOperator):
    """First half of the softmax.

    (maximum, sum of weights) of each of `blocks` runs of the vocabulary.

    Arguments: logits (1, rows, vocab) f32; temperature (1,) f32. Result: (rows, blocks, 2) f32.
    """

    kind: ClassVar[str] = "softmax_partials"
    blocks: int
    rows: Rows = ONE

    @property
    def run(self) -> int:
        """Logits in a run (the last run may be shorter)."""
        return -(-self.vocab // self.blocks)

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, n, self.vocab), "float32")
            temperature = build.arg("temperature", (1,), "float32")
            partials = build.arg("partials", (n, self.blocks, 2), "float32")
            self.define_partials(n, logits, temperature, partials)
        return build.result

    def define_partials(
        self, n: Index, logits: Buffer, temperature: Buffer, partials: Buffer
    ) -> None:
        """Write the partials of n rows."""
        with T.serial(0, n) as i, T.serial(0, self.blocks) as b:
            end = bind(tirx.min((b + 1) * self.run, self.vocab))
            highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", f32(0.0))
            with T.serial(b * self.run, end) as v:
                highest.set(tirx.max(highest.value, logits[0, i, v]))
            with T.serial(b * self.run, end) as v:
                total.add(weight_of(logits[0, i, v], highest.value, temperature[0]))
            store(partials, highest.value, i, b, 0)
            store(partials, total.value, i, b, 1)


def merged_partials(
    blocks: int, partials: Buffer, i: Expr, temperature: Buffer
) -> tuple[LocalVar, LocalVar]:
    """The maximum and the sum of weights of row i, of the partials of so many blocks."""
    highest, total = LocalVar("float32", f32(MASKED)), LocalVar("float32", f32(0.0))
    with T.serial(0, blocks) as b:
        highest.set(tirx.max(highest.value, partials[i, b, 0]))
    with T.serial(0, blocks) as b:
        weight = weight_of(partials[i, b, 0], highest.value, temperature[0])
        total.add(partials[i, b, 1] * weight)
    return highest, total


@dataclass(frozen=True)
class SoftmaxProbs(VocabularyOperator):
    """Second half of the softmax.

    Arguments: logits (1, rows, vocab) f32; temperature (1,) f32; partials (rows, blocks, 2) f32.
    Result: probabilities (1, rows, vocab) f32.
    """

    kind: ClassVar[str] = "softmax_probs"
    blocks: int
    rows: Rows = ONE

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, n, self.vocab), "float32")
            temperature = build.arg("temperature", (1,), "float32")
            partials = build.arg("partials", (n, self.blocks, 2), "float32")
            probs = build.arg("probs", (1, n, self.vocab), "float32")
            with T.serial(0, n) as i:
                highest, total = merged_partials(self.blocks, partials, i, temperature)
                with T.serial(0, self.vocab) as v:
                    weight = weight_of(logits[0, i, v], highest.value, temperature[0])
                    store(probs, weight / total.value, 0, i, v)
        return build.result


def bin_bits(index: Expr) -> Expr:
    """The bits of a bin's smallest probability, as int32; they order as the probabilities do."""
    return tirx.shift_left(index, i32(BIN_SHIFT))


def bits_of(p: Expr) -> Expr:
    """A probability's bits, as int32."""
    return tirx.reinterpret("int32", p)


@dataclass(frozen=True)
class TopPHistogram(VocabularyOperator):
    """Histogram of the probabilities, for a top-p search that reads little of the vocabulary.

    Each run of `RUN` neighbouring tokens is sorted; after the vocabulary's end are zeros.
    Arguments: probs (rows, vocab) f32. Results: each run's probabilities in descending order
    (rows, runs, RUN) f32; the sum of the first, the first two, ... of them (rows, runs, RUN) f32;
    for each bin how many of them lie in it or above (rows, runs, BINS) int32, and their mass
    (rows, runs, BINS) f32.
    """

    kind: ClassVar[str] = "top_p_histogram"
    rows: Rows = ONE

    @property
    def runs(self) -> int:
        """Runs of tokens; the last may be shorter."""
        return -(-self.vocab // RUN)

    def results_of(self, rows: Index) -> list[TensorSpec]:
        """Shapes and dtypes of the results of so many rows."""
        whole, binned = (rows, self.runs, RUN), (rows, self.runs, BINS)
        return [(whole, "float32"), (whole, "float32"), (binned, "int32"), (binned, "float32")]

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            probs = build.arg("probs", (n, self.vocab), "float32")
            ordered, sums, counts, masses = (
                build.arg(name, *spec)
                for name, spec in zip(HISTOGRAM, self.results_of(n), strict=True)
            )
            with T.serial(0, n) as i, T.serial(0, self.runs) as run:
                first = bind(run * RUN)
                size = bind(tirx.min(self.vocab - first, RUN))
                with T.serial(0, RUN) as item:
                    store(ordered, f32(0.0), i, run, item)
                with T.serial(0, size) as item:
                    p, rank = bind(probs[i, first + item]), LocalVar("int32", i32(0))
                    with T.serial(0, size) as other:
                        q = bind(probs[i, first + other])
                        before = tirx.any(q > p, tirx.all(q == p, other < item))
                        rank.add(tirx.Select(before, i32(1), i32(0)))
                    store(ordered, p, i, run, rank.value)
                total = LocalVar("float32", f32(0.0))
                with T.serial(0, RUN) as item:
                    total.add(ordered[i, run, item])
                    store(sums, total.value, i, run, item)
                with T.serial(0, BINS) as index:
                    count, begin = LocalVar("int32", i32(0)), bind(bin_bits(i32(index)))
                    with T.serial(0, RUN) as item:
                        inside = bits_of(ordered[i, run, item]) >= begin
                        count.add(tirx.Select(inside, i32(1), i32(0)))
                    store(counts, count.value, i, run, index)
                    mass = sums[i, run, tirx.max(count.value - 1, i32(0))]
                    store(masses, tirx.Select(count.value > 0, mass, f32(0.0)), i, run, index)
        return build.result


@dataclass(frozen=True)
class SampleTopP(VocabularyOperator):
    """Draw from the top-p set: the most probable tokens whose mass first reaches top_p.

    The threshold is the largest t with ``mass(p >= t) >= top_p``, found on the bits of the
    probabilities (they order as the values do). Of the tokens with ``p == t`` only as many belong
    as are needed, those with the lowest ids. A given `uniform` draws the token at which the sum
    over that set, by ascending ids, passes that share of it.

    Arguments: probs (rows, vocab) f32; the results of `TopPHistogram`; uniform (rows,) f32 in
    [0, 1); top_p (1,) f32. Result: token (rows,) int32.
    """

    kind: ClassVar[str] = "sample_top_p"
    rows: Rows = ONE

    @property
    def histogram(self) -> TopPHistogram:
        """The histogram of the probabilities."""
        return TopPHistogram(self.vocab, self.rows)

    @property
    def maker(self) -> Operator:
        return self.histogram

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            probs = build.arg("probs", (n, self.vocab), "float32")
            for name, (shape, dtype) in zip(HISTOGRAM, self.histogram.results_of(n), strict=True):
                build.arg(name, shape, dtype)
            uniform = build.arg("uniform", (n,), "float32")
            top_p = build.arg("top_p", (1,), "float32")
            token = build.arg("token", (n,), "int32")
            with T.serial(0, n) as i:
                store(token, self.draw(probs, i, uniform[i], top_p[0]), i)
        return build.result

    def draw(self, probs: Buffer, i: Expr, uniform: Expr, top_p: Expr) -> Expr:
        """The token of row i, with sums in float64."""
        f64, none = "float64", tirx.const(0.0, "float64")

        def bits(v: Expr) -> Expr:
            return bits_of(probs[i, v])

        def mass(condition: Callable[[Expr], Expr]) -> LocalVar:
            total = LocalVar(f64, none)
            with T.serial(0, self.vocab) as v, when(condition(v)):
                total.add(probs[i, v].astype(f64))
            return total

        whole = mass(lambda v: bits(v) >= 0)
        wanted = bind(tirx.min(top_p.astype(f64), whole.value))
        threshold = LocalVar("int32", i32(0))
        with T.serial(0, 31) as step:
            candidate = bind(
                tirx.bitwise_or(threshold.value, tirx.shift_left(i32(1), i32(30) - i32(step)))
            )
            reached = mass(lambda v: bits(v) >= candidate)
            with when(tirx.all(reached.value >= wanted, reached.value > none)):
                threshold.set(candidate)
        value = bind(tirx.reinterpret("float32", threshold.value).astype(f64))
        above = mass(lambda v: bits(v) > threshold.value)
        ties = LocalVar("int32", i32(0))
        with when(value > none):
            missing = tirx.max(wanted - above.value, none)
            needed = tirx.max(tirx.ceil(missing / value), tirx.const(1.0, f64))
            # No more than there are: over a tiny value, what rounding misses has no integer.
            most = tirx.const(float(self.vocab), f64)
            ties.set(tirx.min(needed, most).astype("int32"))
        drawn = bind(uniform.astype(f64) * (above.value + value * ties.value.astype(f64)))
        passed = LocalVar(f64, none)
        seen, found, last, done = (LocalVar("int32", i32(0)) for _ in range(4))
        with T.serial(0, self.vocab) as v, when(done.value == 0):
            tie = bind(bits(v) == threshold.value)
            with when(tirx.any(bits(v) > threshold.value, tirx.all(tie, seen.value < ties.value))):
                passed.add(probs[i, v].astype(f64))
                last.set(i32(v))
                with when(passed.value > drawn):
                    found.set(i32(v))
                    done.set(i32(1))
            with when(tie):
                seen.add(i32(1))
        return tirx.Select(done.value == 1, found.value, last.value)


@dataclass(frozen=True)
class LogitBias(VocabularyOperator):
    """``logits[seq[i], token[i]] += bias[i]``, in place.

    Arguments: logits (1, vocab) f32; seq (n,) int32; token (n,) int32; bias (n,) f32.
    """

    kind: ClassVar[str] = "logit_bias"

    def definition(self) -> tirx.PrimFunc:
        n = symbolic_rows(None)
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, self.vocab), "float32")
            seq = build.arg("seq", (n,), "int32")
            token = build.arg("token", (n,), "int32")
            bias = build.arg("bias", (n,), "float32")
            with T.serial(0, n) as i:
                store(logits, logits[seq[i], token[i]] + bias[i], seq[i], token[i])
        return build.result


def penalised(logit: Expr, count: Expr, presence: Expr, frequency: Expr, repetition: Expr) -> Expr:
    """A logit after presence and frequency penalties and the repetition penalty."""
    lowered = bind(logit - (presence + count.astype("float32") * frequency))
    return tirx.Select(lowered < f32(0.0), lowered * repetition, lowered / repetition)


@dataclass(frozen=True)
class Penalty(VocabularyOperator):
    """Penalties for tokens that were generated before, in place.

    Arguments: logits (1, vocab) f32; seq_ids (m,) int32; pos2seq, token, count (n,) int32;
    penalties (m, 3) f32: presence, frequency, repetition.
    """

    kind: ClassVar[str] = "penalty"

    def definition(self) -> tirx.PrimFunc:
        n, m = symbolic_rows(None), symbolic_rows(None, "m")
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, self.vocab), "float32")
            seq_ids = build.arg("seq_ids", (m,), "int32")
            pos2seq = build.arg("pos2seq", (n,), "int32")
            token = build.arg("token", (n,), "int32")
            count = build.arg("count", (n,), "int32")
            penalties = build.arg("penalties", (m, 3), "float32")
            with T.serial(0, n) as i:
                s = bind(pos2seq[i])
                row, column = bind(seq_ids[s]), bind(token[i])
                three = (penalties[s, 0], penalties[s, 1], penalties[s, 2])
                store(logits, penalised(logits[row, column], count[i], *three), row, column)
        return build.result


@dataclass(frozen=True)
class Bitmask(VocabularyOperator):
    """Forbid the tokens whose bit is 0, in place.

    Arguments: logits (1, vocab) f32; seq_ids (1,) int32; mask (1, vocab / 32, rounded up) int32,
    the lowest id in the lowest bit.
    """

    kind: ClassVar[str] = "bitmask"

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, self.vocab), "float32")
            seq_ids = build.arg("seq_ids", (1,), "int32")
            mask = build.arg("mask", (1, -(-self.vocab // 32)), "int32")
            with (
                T.serial(0, self.vocab) as v,
                when(forbidden(mask[seq_ids[0], v // 32], v)),
            ):
                store(logits, f32(MASKED), seq_ids[0], v)
        return build.result


def forbidden(word: Expr, v: Expr) -> Expr:
    """Return whether token v's bit in its mask word is 0."""
    return tirx.bitwise_and(tirx.shift_right(word, i32(tirx.floormod(v, 32))), i32(1)) == i32(0)
