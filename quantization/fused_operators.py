"""Matmuls of one position that begin with the norm in front of them: one launch instead of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import te, tirx

from gemma4_compile.model_spec.operators.base import te_prim_func
from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.math import as_f32
from gemma4_compile.model_spec.operators.norms import inverse_rms
from gemma4_compile.quantization.operators import Linear


@dataclass(frozen=True)
class NormedLinear(Linear):
    """`ResidualNorm` and the `Linear` that reads its result, for one position.

    ``r' = (r + norm(b; w_branch)) * scalar``, ``y = tail(W round(norm(r'; w_next)))``, where round
    is to `in_dtype`; without `normed`, ``y = tail(W r')``.

    Arguments: b, r (1, cols) f32; w_branch (cols,) f32; scalar (1,) f32 if `scaled`; w_next (cols,)
    f32 if `normed`; then as `Linear` from the weights on. Results: r' (1, cols) f32 and y.
    """

    kind: ClassVar[str] = "normed_linear"
    eps: float = 0.0
    scaled: bool = False
    normed: bool = True

    @property
    def name(self) -> str:
        return f"normed_{super().name}"

    def plain(self) -> tirx.PrimFunc:
        assert self.rows == 1, "only decode fuses the norm"
        shape, width, layout = (1, self.cols), self.cols, self.layout
        branch = te.placeholder(shape, "float32", name="branch")
        residual = te.placeholder(shape, "float32", name="residual")
        w_branch = te.placeholder((width,), "float32", name="w_branch")
        args: list[Any] = [branch, residual, w_branch]
        inverse = inverse_rms(branch, 1, width, self.eps, "branch")
        factor: list[te.Tensor] = []
        if self.scaled:
            factor.append(te.placeholder((1,), "float32", name="scalar"))
            args.append(factor[0])

        def total(i: Any, j: Any) -> Any:
            value = residual[i, j] + branch[i, j] * inverse[i] * w_branch[j]
            return value * factor[0][0] if factor else value

        out = te.compute(shape, total, name="out")
        x = out
        if self.normed:
            w_next = te.placeholder((width,), "float32", name="w_next")
            args.append(w_next)
            inverse_out = inverse_rms(out, 1, width, self.eps, "out")
            x = te.compute(
                shape,
                lambda i, j: (out[i, j] * inverse_out[i] * w_next[j]).astype(self.in_dtype),
                name="x",
            )
        weights = layout.placeholders()
        k = te.reduce_axis((0, width), name="k")
        sums = te.compute(
            (1, layout.rows),
            lambda i, j: te.sum(as_f32(x[i, k]) * layout.value(weights, j, k), axis=k),
            name="sums",
        )
        tail_args, y = self.apply_tail(sums)
        return te_prim_func([*args, *weights, *tail_args, out, y])


def fused_buffers(scaled: bool, normed: bool, tail: Tail) -> int:
    """Storage buffers of a `NormedLinear` besides its weights."""
    return 5 + scaled + normed + (tail is Tail.GELU_GATE)
