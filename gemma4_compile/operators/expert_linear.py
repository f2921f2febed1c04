"""Matmuls with the chosen experts' weights: one position (decode), or a chunk grouped by expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import packed_placeholders, unpack
from gemma4_compile.operators.activations import FLOATS, PACKED, Activations, Int8
from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import (
    Sizes,
    chosen_experts,
    expert_order,
    expert_tiles,
)
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh
from gemma4_compile.operators.moe import EXPERT_TILE, routed_begin
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array


@dataclass(frozen=True)
class OverExperts(Operator):
    """The stored experts: a matrix of the rows of expert 0, then of expert 1, ...

    The row splits hold the experts from `expert_begin` on. With `accumulate` the result of an
    earlier call comes as the last argument, and what belongs to other experts is kept (or added
    to): so a model with more row splits than a kernel may bind takes several calls.
    """

    layout: WeightLayout
    expert_rows: int
    experts: int
    top_k: int
    in_dtype: str
    expert_begin: int = 0
    accumulate: bool = False

    @property
    def cols(self) -> int:
        """Channels of x."""
        return self.layout.cols

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

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "ids":
            return chosen_experts(self.experts, self.top_k, shape[0])
        return self.layout.example_input(name, shape, rng)

    def previous_result(self, shape: tuple[Index, ...]) -> list[te.Tensor]:
        """The argument that an earlier call's result comes as, if there is one."""
        return [te.placeholder(shape, "float32", name="previous")] if self.accumulate else []


@dataclass(frozen=True)
class ExpertGateUp(OverExperts):
    """Gate and up of one position: ``out[k] = gelu(Wgate x) * (Wup x)`` of expert ids[k].

    Arguments: the result of `RouterScores`, which holds x; ids (1, top_k) int32; the tensors of all
    row splits, gate and up rows interleaved. Result: (top_k, expert rows / 2) f32.
    """

    kind: ClassVar[str] = "expert_gate_up"

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.expert_rows // 2

    def definition(self) -> tirx.PrimFunc:
        layout, begin = self.layout, routed_begin(self.experts)
        x = te.placeholder((1, begin + self.cols), self.in_dtype, name="routed")
        ids = te.placeholder((1, self.top_k), "int32", name="ids")
        weights = layout.placeholders()
        shape = (self.top_k, self.outputs)
        previous = self.previous_result(shape)
        c = te.reduce_axis((0, self.cols), name="c")
        sums = te.compute(
            (self.top_k, self.expert_rows),
            lambda k, r: te.sum(
                x[0, begin + c] * layout.value(weights, self.first_row(ids[0, k]) + r, c), axis=c
            ),
            name="sums",
        )

        def keep(k: Expr, j: Expr) -> Expr:
            gated = gelu_tanh(sums[k, 2 * j]) * sums[k, 2 * j + 1]
            other = previous[0][k, j] if previous else f32(0.0)
            return tirx.if_then_else(self.holds(ids[0, k]), gated, other)

        out = te.compute(shape, keep, name="out")
        return te_prim_func([x, ids, *weights, *previous, out])


@dataclass(frozen=True)
class ExpertDown(OverExperts):
    """Down of one position, summed: ``y = sum_k weights[k] * Wdown x[k]`` of expert ids[k].

    Arguments: x (top_k, cols) in_dtype; ids (1, top_k) int32; weights (1, top_k) f32; the tensors
    of all row splits. Result: (1, expert rows) f32.
    """

    kind: ClassVar[str] = "expert_down"

    def definition(self) -> tirx.PrimFunc:
        layout = self.layout
        x = te.placeholder((self.top_k, self.cols), self.in_dtype, name="x")
        ids = te.placeholder((1, self.top_k), "int32", name="ids")
        chosen = te.placeholder((1, self.top_k), "float32", name="chosen")
        weights = layout.placeholders()
        shape = (1, self.expert_rows)
        previous = self.previous_result(shape)
        k = te.reduce_axis((0, self.top_k), name="k")
        c = te.reduce_axis((0, self.cols), name="c")

        def term(r: Expr) -> Expr:
            share = tirx.if_then_else(self.holds(ids[0, k]), chosen[0, k], f32(0.0))
            weight = layout.value(weights, self.first_row(ids[0, k]) + r, c)
            return share * as_f32(x[k, c]) * weight

        sums = te.compute(shape, lambda i, r: te.sum(term(r), axis=[k, c]), name="sums")
        if not previous:
            return te_prim_func([x, ids, chosen, *weights, sums])
        out = te.compute(shape, lambda i, r: sums[i, r] + previous[0][i, r], name="out")
        return te_prim_func([x, ids, chosen, *weights, *previous, out])


@dataclass(frozen=True)
class ExpertRows(OverExperts):
    """Fields of the two matmuls of several positions with their experts: gate and up, or down."""

    epilogue: str = Epilogue.GELU_PAIRS.value
    activations: Activations = FLOATS

    @property
    def variant(self) -> str:
        return f"int8_{self.kind}" if self.is_int8 else self.kind

    @property
    def name(self) -> str:
        return self.variant

    @property
    def is_int8(self) -> bool:
        """Whether rows are multiplied as groups of int8."""
        return isinstance(self.activations, Int8)

    @property
    def is_gate_up(self) -> bool:
        """Return whether this is the first of the two matmuls."""
        return self.epilogue == Epilogue.GELU_PAIRS.value

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.expert_rows // 2 if self.is_gate_up else self.expert_rows

    def left(self, rows: Index) -> tuple[list[te.Tensor], te.Tensor]:
        """The arguments that make x, and x itself."""
        if self.in_dtype == PACKED:
            words, scales = packed_placeholders(self.cols, rows)
            return [words, scales], unpack(words, scales, self.layout.products.interleaved)
        x = te.placeholder((rows, self.cols), self.in_dtype, name="x")
        return [x], x


@dataclass(frozen=True)
class ExpertGemm(ExpertRows):
    """Matmul of a chunk's (position, slot) pairs with their experts, ordered by `PermuteByExpert`.

    With epilogue GELU_PAIRS row m reads position ``order[m] // top_k`` of x (rows, cols) and writes
    row m: gate and up. With epilogue NONE it reads row m of x (rows * top_k, cols) and writes row
    ``order[m]``: down.

    Arguments: x in_dtype, or words and scales of it where that is PACKED; order (rows * top_k,)
    int32; tiles (count, 3) int32; the tensors of all row splits. Result: (rows * top_k, outputs)
    f32.
    """

    kind: ClassVar[str] = "expert_gemm"
    tile: int = EXPERT_TILE

    def tile_count(self, pairs: Index) -> Index:
        """Tiles of `PermuteByExpert`."""
        return tirx.floordiv(pairs, self.tile) + self.experts

    def row_counts(self) -> tuple[Index, Index]:
        """Rows of x and number of (position, slot) pairs, on one symbolic variable."""
        n = symbolic_rows(None)
        return (n, n * self.top_k) if self.is_gate_up else (n, n)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "order":
            return expert_order(self.experts, shape)
        if name == "tiles":
            pairs = sizes.rows * self.top_k if self.is_gate_up else sizes.rows
            return expert_tiles(self.experts, pairs, self.tile, shape)
        return super().example_input(name, shape, rng, sizes)

    def definition(self) -> tirx.PrimFunc:
        (rows, pairs), layout, top_k = self.row_counts(), self.layout, self.top_k
        args, x = self.left(rows)
        order = te.placeholder((pairs,), "int32", name="order")
        tiles = te.placeholder((self.tile_count(pairs), 3), "int32", name="tiles")
        weights = layout.placeholders()
        c, t = (
            te.reduce_axis((0, self.cols), name="c"),
            te.reduce_axis((0, self.tile_count(pairs)), name="t"),
        )
        expert = te.compute(
            (pairs,),
            lambda m: te.sum(
                tirx.Select(
                    tirx.all(tiles[t, 1] <= m, m < tiles[t, 2]), tiles[t, 0], tirx.const(0, "int32")
                ),
                axis=t,
            ),
            name="expert",
        )

        def read(m: Expr, column: Expr) -> Expr:
            return as_f32(x[tirx.floordiv(order[m], top_k) if self.is_gate_up else m, column])

        sums = te.compute(
            (pairs, self.expert_rows),
            lambda m, r: te.sum(
                read(m, c) * layout.value(weights, self.first_row(expert[m]) + r, c), axis=c
            ),
            name="sums",
        )
        shape = (pairs, self.outputs)
        previous = self.previous_result(shape)

        def keep(m: Expr, row: Expr, j: Expr, value: Expr) -> Expr:
            other = previous[0][row, j] if previous else f32(0.0)
            return tirx.if_then_else(self.holds(expert[m]), value, other)

        inputs = [*args, order, tiles, *weights, *previous]
        if self.is_gate_up:
            gated = te.compute(
                shape,
                lambda m, j: keep(m, m, j, gelu_tanh(sums[m, 2 * j]) * sums[m, 2 * j + 1]),
                name="out",
            )
            return te_prim_func([*inputs, gated])
        s = te.reduce_axis((0, pairs), name="s")
        zero = tirx.const(0, "int32")
        position = te.compute(  # the inverse of `order`: where pair p was computed
            (pairs,),
            lambda p: te.sum(tirx.Select(order[s] == p, s.astype("int32"), zero), axis=s),
            name="position",
        )
        out = te.compute(
            shape, lambda p, r: keep(position[p], p, r, sums[position[p], r]), name="out"
        )
        return te_prim_func([*inputs, out])
