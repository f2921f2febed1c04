"""Matmuls of one position that begin with what stands in front of them: one launch, not two."""

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


@dataclass(frozen=True)
class MergedLinear(Linear):
    """`MergeSplits` and the `Linear` that reads its result, for one position.

    Arguments: sums (splits, heads, head_dim) f32; stats (splits, heads, 2) f32; the tensors of all
    parts. Result: (1, outputs) f32. The merged vector is rounded to `in_dtype`.
    """

    kind: ClassVar[str] = "merged_linear"
    heads: int = 0
    head_dim: int = 0
    splits: int = 0

    @property
    def name(self) -> str:
        return f"merged_{super().name}"

    def plain(self) -> tirx.PrimFunc:
        heads, dim, layout = self.heads, self.head_dim, self.layout
        sums = te.placeholder((self.splits, heads, dim), "float32", name="sums")
        stats = te.placeholder((self.splits, heads, 2), "float32", name="stats")
        m, s, v = (te.reduce_axis((0, self.splits), name=name) for name in "msv")
        highest = te.compute((heads,), lambda h: te.max(stats[m, h, 0], axis=m), name="highest")
        total = te.compute(
            (heads,),
            lambda h: te.sum(tirx.exp(stats[s, h, 0] - highest[h]) * stats[s, h, 1], axis=s),
            name="total",
        )
        merged = te.compute(
            (heads, dim),
            lambda h, d: te.sum(tirx.exp(stats[v, h, 0] - highest[h]) * sums[v, h, d], axis=v),
            name="merged",
        )
        x = te.compute(
            (1, heads * dim),
            lambda i, j: (merged[j // dim, j % dim] / total[j // dim]).astype(self.in_dtype),
            name="x",
        )
        weights = layout.placeholders()
        k = te.reduce_axis((0, self.cols), name="k")
        y = te.compute(
            (1, layout.rows),
            lambda i, j: te.sum(as_f32(x[i, k]) * layout.value(weights, j, k), axis=k),
            name="y",
        )
        return te_prim_func([sums, stats, *weights, y])


MERGED_BUFFERS = 3  # sums, stats and the result


def fused_buffers(scaled: bool, normed: bool, tail: Tail) -> int:
    """Storage buffers of a `NormedLinear` besides its weights."""
    return 5 + scaled + normed + (tail is Tail.GELU_GATE)
