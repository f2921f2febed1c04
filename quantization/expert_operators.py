"""Matmuls with the chosen experts' weights: one position (decode), or a chunk grouped by expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import te, tirx

from gemma4_compile.model_spec.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.math import as_f32, gelu_tanh
from gemma4_compile.quantization.operators import WeightLayout


@dataclass(frozen=True)
class OverExperts(Operator):
    """The stored experts: a matrix of the rows of expert 0, then of expert 1, ..."""

    bits: int
    weight_dtype: str
    group_size: int
    cols: int
    part_rows: tuple[int, ...]
    experts: int
    top_k: int
    in_dtype: str

    kind: ClassVar[str] = "over_experts"

    @property
    def layout(self) -> WeightLayout:
        """The weights' stored form."""
        return WeightLayout(
            self.bits, self.weight_dtype, self.group_size, self.cols, self.part_rows
        )

    @property
    def expert_rows(self) -> int:
        """Rows of one expert."""
        return self.layout.rows // self.experts


@dataclass(frozen=True)
class ExpertGateUp(OverExperts):
    """Gate and up of one position: ``out[k] = gelu(Wgate x) * (Wup x)`` of expert ids[k].

    Arguments: x (1, cols) in_dtype; ids (1, top_k) int32; the tensors of all parts, gate and up
    rows interleaved. Result: (top_k, expert rows / 2) f32.
    """

    kind: ClassVar[str] = "expert_gate_up"

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.expert_rows // 2

    def plain(self) -> tirx.PrimFunc:
        layout = self.layout
        x = te.placeholder((1, self.cols), self.in_dtype, name="x")
        ids = te.placeholder((1, self.top_k), "int32", name="ids")
        weights = layout.placeholders()
        c = te.reduce_axis((0, self.cols), name="c")
        sums = te.compute(
            (self.top_k, self.expert_rows),
            lambda k, r: te.sum(
                as_f32(x[0, c]) * layout.value(weights, ids[0, k] * self.expert_rows + r, c), axis=c
            ),
            name="sums",
        )
        out = te.compute(
            (self.top_k, self.outputs),
            lambda k, j: gelu_tanh(sums[k, 2 * j]) * sums[k, 2 * j + 1],
            name="out",
        )
        return te_prim_func([x, ids, *weights, out])


@dataclass(frozen=True)
class ExpertDown(OverExperts):
    """Down of one position, summed: ``y = sum_k weights[k] * Wdown x[k]`` of expert ids[k].

    Arguments: x (top_k, cols) in_dtype; ids (1, top_k) int32; weights (1, top_k) f32; the tensors
    of all parts. Result: (1, expert rows) f32.
    """

    kind: ClassVar[str] = "expert_down"

    def plain(self) -> tirx.PrimFunc:
        layout = self.layout
        x = te.placeholder((self.top_k, self.cols), self.in_dtype, name="x")
        ids = te.placeholder((1, self.top_k), "int32", name="ids")
        chosen = te.placeholder((1, self.top_k), "float32", name="chosen")
        weights = layout.placeholders()
        k = te.reduce_axis((0, self.top_k), name="k")
        c = te.reduce_axis((0, self.cols), name="c")
        out = te.compute(
            (1, self.expert_rows),
            lambda i, r: te.sum(
                chosen[0, k]
                * as_f32(x[k, c])
                * layout.value(weights, ids[0, k] * self.expert_rows + r, c),
                axis=[k, c],
            ),
            name="out",
        )
        return te_prim_func([x, ids, chosen, *weights, out])


@dataclass(frozen=True)
class ExpertGemm(OverExperts):
    """Matmul of a chunk's (position, slot) pairs, each with its expert, in the order of `GroupRows`.

    With tail GELU_PAIRS row m reads position ``order[m] // top_k`` of x (rows, cols) and writes row
    m: gate and up. With tail NONE it reads row m of x (rows * top_k, cols) and writes row
    ``order[m]``: down.

    Arguments: x in_dtype; order (rows * top_k,) int32; tiles (count, 3) int32; the tensors of all
    parts. Result: (rows * top_k, outputs) f32.
    """

    kind: ClassVar[str] = "expert_gemm"
    tile: int = 32
    tail: str = Tail.GELU_PAIRS.value

    @property
    def is_gate_up(self) -> bool:
        """Whether this is the first of the two matmuls."""
        return self.tail == Tail.GELU_PAIRS.value

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.expert_rows // 2 if self.is_gate_up else self.expert_rows

    def tile_count(self, pairs: Any) -> Any:
        """Tiles of `GroupRows`."""
        return tirx.floordiv(pairs, self.tile) + self.experts

    def row_counts(self) -> tuple[Any, Any]:
        """Rows of x and number of (position, slot) pairs, on one symbolic variable."""
        n = symbolic_rows(None)
        return (n, n * self.top_k) if self.is_gate_up else (n, n)

    def plain(self) -> tirx.PrimFunc:
        (rows, pairs), layout, top_k = self.row_counts(), self.layout, self.top_k
        x = te.placeholder((rows, self.cols), self.in_dtype, name="x")
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

        def read(m: Any, column: Any) -> Any:
            return as_f32(x[tirx.floordiv(order[m], top_k) if self.is_gate_up else m, column])

        sums = te.compute(
            (pairs, self.expert_rows),
            lambda m, r: te.sum(
                read(m, c) * layout.value(weights, expert[m] * self.expert_rows + r, c), axis=c
            ),
            name="sums",
        )
        if self.is_gate_up:
            out = te.compute(
                (pairs, self.outputs),
                lambda m, j: gelu_tanh(sums[m, 2 * j]) * sums[m, 2 * j + 1],
                name="out",
            )
            return te_prim_func([x, order, tiles, *weights, out])
        s = te.reduce_axis((0, pairs), name="s")
        zero = tirx.const(0, "int32")
        position = te.compute(  # the inverse of `order`: where pair p was computed
            (pairs,),
            lambda p: te.sum(tirx.Select(order[s] == p, s.astype("int32"), zero), axis=s),
            name="position",
        )
        out = te.compute((pairs, self.outputs), lambda p, r: sums[position[p], r], name="out")
        return te_prim_func([x, order, tiles, *weights, out])
