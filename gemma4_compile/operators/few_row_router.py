"""The router of a few rows, in the two halves that a single position has: `Router` for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.moe import EXPERT_NORM, VECTORS, choose_experts, router_scores
from gemma4_compile.operators.rows import FEWEST, Rows
from gemma4_compile.operators.tir import function, store
from gemma4_compile.operators.types import Expr


@dataclass(frozen=True)
class FewRowRouterScores(Operator):
    """The first half of `Router`: a block a row and expert, so that the projection is read at once.

    Arguments: x (rows, width) f32; vectors (4, width) f32; projection (experts, width)
    weight_dtype. Results: scores (rows, experts) f32; ``norm(x; w)`` (rows, width) hidden_dtype,
    or nothing where that is None: who rounds the experts' input has normed it.
    """

    kind: ClassVar[str] = "few_row_router_scores"
    width: int
    experts: int
    eps: float
    factor: float
    weight_dtype: str
    hidden_dtype: str | None
    rows: Rows = FEWEST

    def definition(self) -> tirx.PrimFunc:
        rows, width, experts = self.rows.extent(), self.width, self.experts
        x = te.placeholder((rows, width), "float32", name="x")
        vectors = te.placeholder((VECTORS, width), "float32", name="vectors")
        projection = te.placeholder((experts, width), self.weight_dtype, name="projection")
        inverse, scores = router_scores(x, vectors, projection, rows, self.eps, self.factor)
        if self.hidden_dtype is None:
            return te_prim_func([x, vectors, projection, scores])

        def normed(i: Expr, k: Expr) -> Expr:
            return (x[i, k] * inverse[i] * vectors[EXPERT_NORM, k]).astype(self.hidden_dtype)

        hidden = te.compute((rows, width), normed, name="hidden")
        return te_prim_func([x, vectors, projection, scores, hidden])


@dataclass(frozen=True)
class FewRowTopKExperts(Operator):
    """The second half of `Router`.

    Arguments: scores (rows, experts) f32; expert_scale (experts,) f32. Results: ids (rows, top_k)
    int32; weights (rows, top_k) f32.
    """

    kind: ClassVar[str] = "few_row_top_k_experts"
    experts: int
    top_k: int
    rows: Rows = FEWEST

    def definition(self) -> tirx.PrimFunc:
        rows = self.rows.extent()
        with function(scheduled=False) as build:
            given = build.arg("scores", (rows, self.experts), "float32")
            expert_scale = build.arg("expert_scale", (self.experts,), "float32")
            ids = build.arg("ids", (rows, self.top_k), "int32")
            weights = build.arg("weights", (rows, self.top_k), "float32")
            with T.serial(0, rows) as i:
                scores = T.alloc_buffer((self.experts,), "float32", scope="local")
                with T.serial(0, self.experts) as e:
                    store(scores, given[i, e], e)
                choose_experts(self.experts, self.top_k, scores, expert_scale, ids, weights, i)
        return build.result
