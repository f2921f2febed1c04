"""Matmul with the weights of chosen experts: of one position, of a few, or of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    moved_share,
    pack,
    packed_placeholders,
    rounded,
    unpack,
)
from gemma4_compile.operators.activations import (
    FLOAT32,
    FLOATS,
    PACKED,
    Activations,
    Halved,
    HalvedInt8,
    Int8,
    Output,
    PackedOutput,
)
from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import (
    HALF_ULP_F16,
    Sizes,
    chosen_experts,
    expert_order,
    expert_tiles,
    own_vector_error,
)
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh
from gemma4_compile.operators.moe import (
    EXPERT_TILE,
    chosen_ids,
    chosen_weights,
    routed_begin,
    routed_width,
)
from gemma4_compile.operators.rows import ONE, Chunk, Few, One, Rows
from gemma4_compile.operators.tir import i32
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array


@dataclass(frozen=True)
class ExpertLinear(Operator):
    """Gate and up (epilogue GELU_PAIRS), or down (NONE), of (position, slot) pairs' experts.

    The stored experts are a matrix of the rows of expert 0, then of expert 1, ... Pair
    ``position * top_k + slot`` is multiplied with expert ``ids[position, slot]``; the slots of a
    position have different experts. Gate and up read a position's x and write
    ``gelu(Wgate x) * (Wup x)``, down reads a pair's x.

    - `One`: gate and up take the result of `RouterScores`, which holds x, and ids (1, top_k) int32;
      the result is (top_k, outputs) f32. Down takes x (top_k, cols), ids and weights (1, top_k)
      f32; it adds the experts up, each times its weight: (1, outputs) f32. On int8 gate and up
      choose, too: without ids, which are their last result. Down has words, scales, ids, the result
      of `RouterScores` and expert_scale (experts,) f32, by which it weighs the experts itself.
    - `Few`: x, or words and scales of it where that is PACKED; ids (rows, top_k) int32. Result:
      (rows * top_k, outputs) f32, or words and scales of it.
    - `Chunk`: x; order (rows * top_k,) int32 and tiles (count, 3) int32 of `PermuteByExpert`. Rows
      between gate and up and down are in that order; down's result is in that of the pairs.

    Behind those are the tensors of all row splits, which hold the experts from `expert_begin` on.
    With `accumulate` the result of an earlier call comes as the last argument, and what belongs to
    other experts is kept (or added to): so a model with more row splits than a kernel may bind
    takes several calls.
    """

    kind: ClassVar[str] = "expert_linear"
    layout: WeightLayout
    expert_rows: int
    experts: int
    top_k: int
    in_dtype: str
    rows: Rows = ONE
    epilogue: str = Epilogue.GELU_PAIRS.value
    expert_begin: int = 0
    accumulate: bool = False
    activations: Activations = FLOATS
    output: Output = FLOAT32
    tile: int = EXPERT_TILE

    @property
    def name(self) -> str:
        return f"{self.variant}_{self.epilogue}" if isinstance(self.rows, Few) else self.variant

    @property
    def variant(self) -> str:
        form = "int8_" if self.is_int8 else ""
        match self.rows:
            case One():
                return f"{form}expert_gate_up" if self.is_gate_up else f"{form}expert_down"
            case Few():
                return f"{form}few_row_experts"
        return f"{form}expert_gemm"

    @property
    def is_int8(self) -> bool:
        """Whether rows are multiplied as groups of int8."""
        return isinstance(self.activations, Int8)

    @property
    def in_halves(self) -> bool:
        """Whether those and the weights are multiplied as float16."""
        return isinstance(self.activations, HalvedInt8)

    @property
    def by_halves(self) -> bool:
        """Whether floats are multiplied by the weights as float16."""
        return isinstance(self.activations, Halved)

    @property
    def is_gate_up(self) -> bool:
        """Return whether this is the first of the two matmuls."""
        return self.epilogue == Epilogue.GELU_PAIRS.value

    @property
    def packs(self) -> bool:
        return isinstance(self.output, PackedOutput)

    @property
    def cols(self) -> int:
        """Channels of x."""
        return self.layout.cols

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.expert_rows // 2 if self.is_gate_up else self.expert_rows

    @property
    def held(self) -> int:
        """Experts in the row splits."""
        return self.layout.rows // self.expert_rows

    def holds(self, expert: Expr) -> Expr:
        """Return whether the row splits hold an expert."""
        return tirx.all(expert >= self.expert_begin, expert < self.expert_begin + self.held)

    def first_row(self, expert: Expr) -> Expr:
        """The first row of an expert in the parts; of some held expert for one that is not."""
        local = tirx.max(tirx.min(expert - self.expert_begin, self.held - 1), 0)
        return local * self.expert_rows

    def tile_count(self, pairs: Index) -> Index:
        """Tiles of `PermuteByExpert`."""
        return tirx.floordiv(pairs, self.tile) + self.experts

    def row_counts(self) -> tuple[Index, Index]:
        """Rows of x and number of pairs, of a chunk on one symbolic variable."""
        n = self.rows.extent()
        if isinstance(self.rows, Chunk):
            return (n, n * self.top_k) if self.is_gate_up else (n, n)
        return n if self.is_gate_up else n * self.top_k, n * self.top_k

    def tolerance(self, result: str) -> float:
        halves = self.activations.rounded_operands * HALF_ULP_F16
        return super().tolerance(result) + self._own_error + halves

    def moved_share(self) -> float:
        return moved_share(self._own_error)

    @property
    def _own_error(self) -> float:
        """The error of a vector that the kernel rounds itself."""
        is_own = isinstance(self.rows, One) and self.is_int8 and self.is_gate_up
        return own_vector_error(self.in_dtype, self.cols, True) if is_own else 0.0

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "ids":
            return chosen_experts(self.experts, self.top_k, shape[0])
        if name == "order":
            return expert_order(self.experts, shape)
        if name == "tiles":
            pairs = sizes.rows * self.top_k if self.is_gate_up else sizes.rows
            return expert_tiles(self.experts, pairs, self.tile, shape)
        return self.layout.example_input(name, shape, rng)

    def definition(self) -> tirx.PrimFunc:
        match self.rows:
            case One():
                return self._gate_up_of_one() if self.is_gate_up else self._down_of_one()
            case Few():
                return self._of_few()
        return self._of_chunk()

    def _previous(self, shape: tuple[Index, ...]) -> list[te.Tensor]:
        """The argument that an earlier call's result comes as, if there is one."""
        return [te.placeholder(shape, "float32", name="previous")] if self.accumulate else []

    def _left(self, rows: Index) -> tuple[list[te.Tensor], te.Tensor]:
        """The arguments that make x, and x itself."""
        if self.in_dtype == PACKED:
            words, scales = packed_placeholders(self.cols, rows)
            return [words, scales], unpack(words, scales, self.layout.products.interleaved)
        x = te.placeholder((rows, self.cols), self.in_dtype, name="x")
        return [x], x

    def _multiply(
        self,
        pairs: Index,
        read: Callable[[Expr, Expr], Expr],
        expert_of: Callable[[Expr], Expr],
    ) -> tuple[list[te.Tensor], list[te.Tensor]]:
        """Weights with a previous result, and the result, from a pair's x and its expert."""
        weights = self.layout.placeholders()
        sums = self._sums(weights, pairs, read, expert_of)
        shape = (pairs, self.outputs)
        previous = self._previous(shape)

        def keep(p: Expr, j: Expr) -> Expr:
            other = previous[0][p, j] if previous else f32(0.0)
            gated = self.is_gate_up
            own = gelu_tanh(sums[p, 2 * j]) * sums[p, 2 * j + 1] if gated else sums[p, j]
            return tirx.if_then_else(self.holds(expert_of(p)), own, other)

        return [*weights, *previous], self._stored(te.compute(shape, keep, name="out"))

    def _sums(
        self,
        weights: list[te.Tensor],
        pairs: Index,
        read: Callable[[Expr, Expr], Expr],
        expert_of: Callable[[Expr], Expr],
    ) -> te.Tensor:
        """A pair's x times all rows of its expert: each sum by itself, the channels in order."""
        c = te.reduce_axis((0, self.cols), name="c")

        def product(p: Expr, r: Expr) -> Expr:
            row = self.first_row(expert_of(p)) + r
            return te.sum(read(p, c) * self.layout.value(weights, row, c), axis=c)

        return te.compute((pairs, self.expert_rows), product, name="sums")

    def _stored(self, out: te.Tensor) -> list[te.Tensor]:
        """The tensors that hold the result."""
        match self.output:
            case PackedOutput(interleaved=interleaved):
                return pack(out, interleaved)
        return [out]

    def _gate_up_of_one(self) -> tirx.PrimFunc:
        begin, top_k = routed_begin(self.experts), self.top_k
        routed = te.placeholder((1, begin + self.cols), self.in_dtype, name="routed")
        if self.is_int8:
            assert not self.accumulate, "all experts are in one call"
            ids = chosen_ids(routed, self.experts, top_k)
            x = rounded(te.compute((1, self.cols), lambda i, c: routed[i, begin + c], name="x"))
            weights, results = self._multiply(top_k, lambda k, c: x[0, c], lambda k: ids[0, k])
            return te_prim_func([routed, *weights, *results, ids])
        ids = te.placeholder((1, top_k), "int32", name="ids")
        weights, results = self._multiply(
            top_k, lambda k, c: routed[0, begin + c], lambda k: ids[0, k]
        )
        return te_prim_func([routed, ids, *weights, *results])

    def _down_of_one(self) -> tirx.PrimFunc:
        top_k, shape = self.top_k, (1, self.expert_rows)
        weights, (left, x) = self.layout.placeholders(), self._left(top_k)
        ids = te.placeholder((1, top_k), "int32", name="ids")
        if self.is_int8:
            assert not self.accumulate, "all experts are in one call"
            columns = routed_width(self.experts, self.expert_rows)
            scores = te.placeholder((1, columns), "float32", name="scores")
            expert_scale = te.placeholder((self.experts,), "float32", name="expert_scale")
            chosen = chosen_weights(ids, scores, expert_scale)
            args = [*left, ids, scores, expert_scale]
        else:
            chosen = te.placeholder((1, top_k), "float32", name="chosen")
            args = [*left, ids, chosen]
        previous = self._previous(shape)
        # As a chunk's pairs and `CombineExperts`, to the last bit: each expert's sum by itself.
        sums = self._sums(weights, top_k, lambda p, c: as_f32(x[p, c]), lambda p: ids[0, p])
        k = te.reduce_axis((0, top_k), name="k")

        def term(r: Expr) -> Expr:
            share = tirx.if_then_else(self.holds(ids[0, k]), chosen[0, k], f32(0.0))
            return share * sums[k, r]

        y = te.compute(shape, lambda i, r: te.sum(term(r), axis=k), name="y")
        if not previous:
            return te_prim_func([*args, *weights, y])
        out = te.compute(shape, lambda i, r: y[i, r] + previous[0][i, r], name="out")
        return te_prim_func([*args, *weights, *previous, out])

    def _of_few(self) -> tirx.PrimFunc:
        n, top_k = self.rows.extent(), self.top_k
        pairs = n * top_k
        args, x = self._left(n if self.is_gate_up else pairs)
        # By the number itself: TVM cannot solve a size like `n * top_k // top_k` for it.
        ids = te.placeholder((n, top_k), "int32", name="ids")
        weights, results = self._multiply(
            pairs,
            lambda p, c: as_f32(x[tirx.floordiv(p, top_k) if self.is_gate_up else p, c]),
            lambda p: ids[tirx.floordiv(p, top_k), tirx.floormod(p, top_k)],
        )
        return te_prim_func([*args, ids, *weights, *results])

    def _of_chunk(self) -> tirx.PrimFunc:
        (rows, pairs), top_k = self.row_counts(), self.top_k
        args, x = self._left(rows)
        order = te.placeholder((pairs,), "int32", name="order")
        tiles = te.placeholder((self.tile_count(pairs), 3), "int32", name="tiles")
        expert = _expert_of_place(tiles, pairs)
        if self.is_gate_up:
            weights, results = self._multiply(
                pairs,
                lambda m, c: as_f32(x[tirx.floordiv(order[m], top_k), c]),
                lambda m: expert[m],
            )
        else:
            place = _inverse(order, pairs)
            weights, results = self._multiply(
                pairs, lambda p, c: as_f32(x[place[p], c]), lambda p: expert[place[p]]
            )
        return te_prim_func([*args, order, tiles, *weights, *results])


def _expert_of_place(tiles: te.Tensor, pairs: Index) -> te.Tensor:
    """The expert of each place in the order of `PermuteByExpert`."""
    t = te.reduce_axis((0, tiles.shape[0]), name="t")

    def own(m: Expr) -> Expr:
        inside = tirx.all(tiles[t, 1] <= m, m < tiles[t, 2])
        return te.sum(tirx.Select(inside, tiles[t, 0], i32(0)), axis=t)

    return te.compute((pairs,), own, name="expert")


def _inverse(order: te.Tensor, pairs: Index) -> te.Tensor:
    """Where a pair was computed."""
    s = te.reduce_axis((0, pairs), name="s")
    return te.compute(
        (pairs,),
        lambda p: te.sum(tirx.Select(order[s] == p, s.astype("int32"), i32(0)), axis=s),
        name="position",
    )
