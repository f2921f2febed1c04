"""Matmuls of one position with its experts, on vectors that are rounded to int8 by groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    moved_share,
    pack,
    packed_placeholders,
    rounded,
    unpack,
)
from gemma4_compile.operators.base import te_prim_func
from gemma4_compile.operators.examples import own_vector_error
from gemma4_compile.operators.expert_linear import ExpertDown, ExpertGateUp
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.moe import (
    chosen_ids,
    chosen_weights,
    routed_begin,
    routed_width,
)


@dataclass(frozen=True)
class Int8ExpertGateUp(ExpertGateUp):
    """`TopKExperts` and `ExpertGateUp` on a rounded vector, packed for `Int8ExpertDown`.

    Arguments: the result of `RouterScores`, which holds x; the tensors of all row splits. Results:
    words and scales of (top_k, expert rows / 2); ids (1, top_k) int32.
    """

    kind: ClassVar[str] = "int8_expert_gate_up"
    interleaved_out: bool = False

    @property
    def packs(self) -> bool:
        return True

    def tolerance(self, result: str) -> float:
        return super().tolerance(result) + self._own_error

    def moved_share(self) -> float:
        return moved_share(self._own_error)

    @property
    def _own_error(self) -> float:
        """The error of the vector that the kernel rounds itself."""
        return own_vector_error(self.in_dtype, self.cols, True)

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
