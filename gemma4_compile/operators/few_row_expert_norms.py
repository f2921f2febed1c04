"""The norms of a layer's two branches before the experts of a few rows, packed for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import pack
from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.moe import (
    BRANCH_NORM,
    DENSE_NORM,
    EXPERT_NORM,
    VECTORS,
    RoutedNorm,
    router_scores,
)
from gemma4_compile.operators.norms import inverse_rms, residual_sum
from gemma4_compile.operators.rows import FEWEST, Rows


@dataclass(frozen=True)
class QuantizedBranchNorms(Operator):
    """`ResidualNorm` before a dense branch and experts, and the experts' norm of `Router`, packed.

    ``r' = r + norm(y; v[BRANCH_NORM])``. Arguments: y, r (rows, width) f32; v (4, width) f32.
    Results: r' (rows, width) f32; words, scales of ``norm(r'; v[DENSE_NORM])`` and of
    ``norm(r'; v[EXPERT_NORM])``.

    Attributes
    ----------
    interleaved, experts_interleaved : order of the bytes of either
    experts : of the router whose scores are made beside the norms; 0 without one. Then also an
        argument: projection (experts, width) router_dtype; and a result: scores (rows, experts) f32
    """

    kind: ClassVar[str] = "quantized_branch_norms"
    width: int
    eps: float
    interleaved: bool
    experts_interleaved: bool
    rows: Rows = FEWEST
    experts: int = 0
    factor: float = 1.0
    router_dtype: str = "float32"

    @property
    def name(self) -> str:
        return "routed_branch_norms" if self.experts else self.kind

    @property
    def routed_norm(self) -> RoutedNorm:
        """The norm and the router of one position."""
        return RoutedNorm(self.width, self.eps, self.experts, self.factor, self.router_dtype)

    @property
    def packs(self) -> bool:
        return True

    def definition(self) -> tirx.PrimFunc:
        args, out, packed = self.norms()
        if not self.experts:
            return te_prim_func([*args, out, *packed])
        shape = (self.experts, self.width)
        projection = te.placeholder(shape, self.router_dtype, name="projection")
        _, scores = router_scores(out, args[2], projection, out.shape[0], self.eps, self.factor)
        return te_prim_func([*args, projection, out, *packed, scores])

    def norms(self) -> tuple[list[te.Tensor], te.Tensor, list[te.Tensor]]:
        """Arguments, r', and words and scales of both norms."""
        rows, width = self.rows.extent(), self.width
        y = te.placeholder((rows, width), "float32", name="y")
        residual = te.placeholder((rows, width), "float32", name="residual")
        vectors = te.placeholder((VECTORS, width), "float32", name="vectors")
        out = residual_sum(y, residual, lambda j: vectors[BRANCH_NORM, j], None, self.eps)
        inverse = inverse_rms(out, rows, width, self.eps, "out")

        def packed(number: int, interleaved: bool) -> list[te.Tensor]:
            normed = te.compute(
                (rows, width),
                lambda i, j: out[i, j] * inverse[i] * vectors[number, j],
                name=f"normed{number}",
            )
            return list(pack(normed, interleaved))

        dense = packed(DENSE_NORM, self.interleaved)
        experts = packed(EXPERT_NORM, self.experts_interleaved)
        return [y, residual, vectors], out, [*dense, *experts]
