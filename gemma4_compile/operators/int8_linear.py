"""Matmuls on vectors that are rounded to int8 by groups.

The rounding: activation_quantization.py. Definitions multiply the rounded vector in float32;
kernels sum products of integers within a group, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    LEVELS,
    pack,
    packed_placeholders,
    quantized_specs,
    rounded,
    unpack,
)
from gemma4_compile.operators.base import Operator, TensorSpec, te_prim_func
from gemma4_compile.operators.examples import MOVED_BYTES, own_vector_error
from gemma4_compile.operators.expert_linear import ExpertDown, ExpertGateUp, ExpertGemm
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.moe import (
    chosen_ids,
    chosen_weights,
    routed_begin,
    routed_width,
)
from gemma4_compile.operators.prologues import MadeVector
from gemma4_compile.operators.types import Index

PACKED = "int8"  # in place of the dtype of a vector that comes packed
PACKED_ROWS = 2 * GROUP  # gate and up rows of one group of results


def takes_int8(layout: WeightLayout) -> bool:
    """Return whether quantised vectors can meet a matrix: it has a scale for each group."""
    return layout.takes_int8 and layout.group_size == GROUP


class Int8Sums(Operator):
    """Errors of sums whose vector the kernel rounds to int8 itself, unless it comes packed."""

    layout: WeightLayout
    in_dtype: str

    @property
    def packs(self) -> bool:
        return True

    def tolerance(self, result: str) -> float:
        # The new residual and the router's scores are made in float32.
        own = 0.0 if result in ("out", "routed") else self._own_error
        return super().tolerance(result) + own

    def moved_share(self) -> float:
        """Return the share of packed results that may be one unit off.

        A packed result counts LEVELS units up to its group's largest, and where it is between two
        edges is as good as random: it moves as often as its change is large in units. Left out, as
        it nearly cancels: the largest of a group is below that of all, its scale moves along, and
        a product has two factors; but weights have 0.87 deviations on average, not 2, and half of
        the gates are closed. One byte of x moves about a quarter of this share, as a test measures.
        """
        return MOVED_BYTES + LEVELS * self._own_error

    @property
    def _own_error(self) -> float:
        own = self.in_dtype != PACKED
        return own_vector_error(self.in_dtype, self.layout.cols, True) if own else 0.0


@dataclass(frozen=True)
class Int8Linear(Int8Sums, Linear):
    """``y = epilogue(round(x) W^T)``.

    Arguments: as `Linear`; x is packed (words, scales) where `in_dtype` is PACKED, as a chunk's
    always is, and otherwise rounded by the kernel. Results: (rows, outputs) f32 or, with
    `packed_out`, words and scales of it.

    Attributes
    ----------
    packed_out : the result is packed for the matrix that reads it
    interleaved_out : that matrix has 4-bit weights
    tiled, tiled_out : the words of a few packed rows of x, and of a packed result, are in tiles
    """

    kind: ClassVar[str] = "int8_linear"
    packed_out: bool = False
    interleaved_out: bool = False
    tiled: bool = False
    tiled_out: bool = False

    @property
    def product_name(self) -> str:
        return f"int8_{super().product_name}"

    @property
    def interleaved(self) -> bool:
        """The order of a packed x."""
        return self.layout.products.interleaved

    @property
    def product_specs(self) -> list[TensorSpec]:
        """Shapes and dtypes of the product of one position."""
        return quantized_specs(self.outputs) if self.packed_out else super().product_specs

    @property
    def _vector_error(self) -> float:
        return 0.0  # `Int8Sums` has it

    def left(self) -> tuple[list[te.Tensor], te.Tensor]:
        if self.in_dtype == PACKED:
            words, scales = self.packed_x()
            return [words, scales], unpack(words, scales, self.interleaved)
        args, x = super().left()
        return args, rounded(x)

    def rounded(self, made: MadeVector) -> te.Tensor:
        return rounded(made.x)

    def packed_x(self) -> list[te.Tensor]:
        """Placeholders of x where it comes packed: words, scales."""
        return packed_placeholders(self.cols, self.rows.extent(), self.tiled)

    def stored(self, y: te.Tensor) -> list[te.Tensor]:
        return pack(y, self.interleaved_out, self.tiled_out) if self.packed_out else [y]


@dataclass(frozen=True)
class Int8ExpertGateUp(Int8Sums, ExpertGateUp):
    """`TopKExperts` and `ExpertGateUp` on a rounded vector, packed for `Int8ExpertDown`.

    Arguments: the result of `RouterScores`, which holds x; the tensors of all row splits. Results:
    words and scales of (top_k, expert rows / 2); ids (1, top_k) int32.
    """

    kind: ClassVar[str] = "int8_expert_gate_up"
    interleaved_out: bool = False

    def definition(self) -> tirx.PrimFunc:
        assert not self.accumulate, "all experts are in one call"
        layout, begin = self.layout, routed_begin(self.experts)
        routed = te.placeholder((1, begin + self.cols), self.in_dtype, name="routed")
        weights = layout.placeholders()
        ids = chosen_ids(routed, self.experts, self.top_k)
        x = te.compute((1, self.cols), lambda i, c: routed[i, begin + c], name="x")
        meaning = rounded(x)
        c = te.reduce_axis((0, self.cols), name="c")
        sums = te.compute(
            (self.top_k, self.expert_rows),
            lambda k, r: te.sum(
                meaning[0, c] * layout.value(weights, self.first_row(ids[0, k]) + r, c), axis=c
            ),
            name="sums",
        )
        y = te.compute(
            (self.top_k, self.outputs),
            lambda k, j: gelu_tanh(sums[k, 2 * j]) * sums[k, 2 * j + 1],
            name="y",
        )
        return te_prim_func([routed, *weights, *pack(y, self.interleaved_out), ids])


@dataclass(frozen=True)
class Int8ExpertDown(ExpertDown):
    """`ExpertDown` on quantised vectors, which weighs the chosen experts itself.

    Arguments: words, scales of (top_k, cols); ids (1, top_k) int32; the result of `RouterScores`;
    expert_scale (experts,) f32; the tensors of all row splits. Result: (1, expert rows) f32.
    """

    kind: ClassVar[str] = "int8_expert_down"

    def definition(self) -> tirx.PrimFunc:
        assert not self.accumulate, "all experts are in one call"
        layout = self.layout
        words, scales = packed_placeholders(self.cols, self.top_k)
        ids = te.placeholder((1, self.top_k), "int32", name="ids")
        columns = routed_width(self.experts, self.expert_rows)
        scores = te.placeholder((1, columns), "float32", name="scores")
        expert_scale = te.placeholder((self.experts,), "float32", name="expert_scale")
        weights = layout.placeholders()
        chosen = chosen_weights(ids, scores, expert_scale)
        x = unpack(words, scales, layout.products.interleaved)
        k = te.reduce_axis((0, self.top_k), name="k")
        c = te.reduce_axis((0, self.cols), name="c")
        y = te.compute(
            (1, self.expert_rows),
            lambda i, r: te.sum(
                chosen[0, k] * x[k, c] * layout.value(weights, self.first_row(ids[0, k]) + r, c),
                axis=[k, c],
            ),
            name="y",
        )
        return te_prim_func([words, scales, ids, scores, expert_scale, *weights, y])


@dataclass(frozen=True)
class Int8ExpertGemm(ExpertGemm):
    """`ExpertGemm` on packed rows.

    Arguments: words, scales of x; then as `ExpertGemm` from the order on.
    """

    kind: ClassVar[str] = "int8_expert_gemm"

    def left(self, rows: Index) -> tuple[list[te.Tensor], te.Tensor]:
        words, scales = packed_placeholders(self.cols, rows)
        return [words, scales], unpack(words, scales, self.layout.products.interleaved)
