"""Matmuls of a few positions with their experts: as `ExpertGemm`, without an order of the pairs.

As few (position, slot) pairs as these find the others of their expert themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import pack
from gemma4_compile.operators.activations import FLOAT32, Output, PackedOutput
from gemma4_compile.operators.base import te_prim_func
from gemma4_compile.operators.expert_linear import ExpertRows
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh
from gemma4_compile.operators.rows import FEWEST, Rows
from gemma4_compile.operators.types import Expr, Index


@dataclass(frozen=True)
class FewRowExperts(ExpertRows):
    """Matmul of the (position, slot) pairs of a few positions with their experts.

    Pair ``p = position * top_k + slot`` is multiplied with expert ``ids[position, slot]``, and is
    row p of the result. With epilogue GELU_PAIRS (gate and up) it reads row ``position`` of x
    (rows, cols), with epilogue NONE (down) row p of x (rows * top_k, cols). The slots of a position
    have different experts.

    Arguments: x in_dtype, or words and scales of it where that is PACKED; ids (rows, top_k) int32;
    the tensors of all row splits. Result: (rows * top_k, outputs) f32, or words and scales of it.
    """

    kind: ClassVar[str] = "few_row_experts"
    rows: Rows = FEWEST
    output: Output = FLOAT32

    @property
    def name(self) -> str:
        return f"{super().name}_{self.epilogue}"

    @property
    def packs(self) -> bool:
        return isinstance(self.output, PackedOutput)

    def definition(self) -> tirx.PrimFunc:
        rows, layout, top_k = self.rows.extent(), self.layout, self.top_k
        args, x = self.left(rows if self.is_gate_up else rows * top_k)
        ids = te.placeholder((rows, top_k), "int32", name="ids")
        weights = layout.placeholders()
        c = te.reduce_axis((0, self.cols), name="c")

        def expert_of(p: Expr) -> Expr:
            return ids[tirx.floordiv(p, top_k), tirx.floormod(p, top_k)]

        def product(p: Expr, r: Expr) -> Expr:
            value = as_f32(x[tirx.floordiv(p, top_k) if self.is_gate_up else p, c])
            weight = layout.value(weights, self.first_row(expert_of(p)) + r, c)
            return te.sum(value * weight, axis=c)

        sums = te.compute((rows * top_k, self.expert_rows), product, name="sums")
        shape: tuple[Index, ...] = (rows * top_k, self.outputs)
        previous = self.previous_result(shape)

        def keep(p: Expr, j: Expr) -> Expr:
            other = previous[0][p, j] if previous else f32(0.0)
            gated = self.is_gate_up
            own = gelu_tanh(sums[p, 2 * j]) * sums[p, 2 * j + 1] if gated else sums[p, j]
            return tirx.if_then_else(self.holds(expert_of(p)), own, other)

        out = te.compute(shape, keep, name="out")
        return te_prim_func([*args, ids, *weights, *previous, *self.stored(out)])

    def stored(self, out: te.Tensor) -> list[te.Tensor]:
        """The tensors that hold the result."""
        match self.output:
            case PackedOutput(interleaved=interleaved):
                return pack(out, interleaved)
        return [out]
