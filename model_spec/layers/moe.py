"""Mixture of experts: the router, the chosen experts, their weighted sum."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.norm import NormStack, Vector
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.moe import (
    EXPERT_TILE,
    CombineExperts,
    PermuteByExpert,
    Router,
    RouterScores,
    TopKExperts,
    routed_width,
)
from gemma4_compile.operators.rows import One, Rows, rows_of_extent


@dataclass(frozen=True)
class MoeSizes:
    """Sizes of a layer with experts.

    Attributes
    ----------
    hidden_size, num_experts, top_k : as in the config
    eps : of all norms
    dtype : of a chunk's normed inputs; one position's are float32
    """

    hidden_size: int
    num_experts: int
    top_k: int
    eps: float
    dtype: str

    @property
    def factor(self) -> float:
        """The router's normed input is multiplied by it."""
        return float(self.hidden_size) ** -0.5


class RouterWeights(nn.Module):
    """The router's parameters; its projection is stored densely."""

    def __init__(self, prefix: str, sizes: MoeSizes, matrices: Matrices) -> None:
        self.proj = nn.Module()
        self.proj.weight = matrices.dense(f"{prefix}.proj")
        self.per_expert_scale = Vector(sizes.num_experts)


class ExpertWeights(nn.Module):
    """The experts' matrices of one layer, at a prefix like ``layers.0.experts``."""

    def __init__(self, prefix: str, matrices: Matrices) -> None:
        self.gate_up_proj = matrices.experts(f"{prefix}.gate_up_proj")
        self.down_proj = matrices.experts(f"{prefix}.down_proj")


def run_experts(
    sizes: MoeSizes,
    router: RouterWeights,
    experts: ExpertWeights,
    norms: NormStack,
    residual: nn.Tensor,
) -> nn.Tensor:
    """The experts' branch of the residual, before its norm: (rows, hidden_size) float32.

    Parameters
    ----------
    norms : as `Router` takes them
    residual : (rows, hidden_size) float32
    """
    rows = rows_of_extent(residual.shape[0])
    if isinstance(rows, One):
        return _run_one(sizes, router, experts, norms, residual)
    top_k, (n, width) = sizes.top_k, residual.shape
    ids, weights, hidden = _route(sizes, router, norms, residual, rows)
    permute = PermuteByExpert(sizes.num_experts, top_k, EXPERT_TILE)
    specs = [((n * top_k,), "int32"), ((permute.tile_count(n * top_k), 3), "int32")]
    order, tiles = emit(permute, [ids], specs)
    gated = experts.gate_up_proj.grouped(hidden, order, tiles, top_k, Epilogue.GELU_PAIRS)
    outputs = experts.down_proj.grouped(gated, order, tiles, top_k, Epilogue.NONE)
    combine = CombineExperts(rows, top_k, width)
    return emit(combine, [outputs, weights], [((n, width), "float32")])[0]


def _run_one(
    sizes: MoeSizes,
    router: RouterWeights,
    experts: ExpertWeights,
    norms: NormStack,
    residual: nn.Tensor,
) -> nn.Tensor:
    """One position: only the rows of its experts are read."""
    width, count, top_k = sizes.hidden_size, sizes.num_experts, sizes.top_k
    scores = RouterScores(width, count, sizes.eps, sizes.factor, router.proj.weight.dtype)
    args = [residual, norms.weight, router.proj.weight]
    (routed,) = emit(scores, args, [((1, routed_width(count, width)), "float32")])
    specs: list[TensorSpec] = [((1, top_k), "int32"), ((1, top_k), "float32")]
    choice = TopKExperts(count, top_k, width)
    ids, weights = emit(choice, [routed, router.per_expert_scale.weight], specs)
    gated = experts.gate_up_proj.gate_up(routed, ids, top_k)
    return experts.down_proj.down(gated, ids, weights, top_k)


def _route(
    sizes: MoeSizes, router: RouterWeights, norms: NormStack, x: nn.Tensor, rows: Rows
) -> tuple[nn.Tensor, ...]:
    """Ids (rows, top_k) int32, weights (rows, top_k) f32, and the normed x of the experts."""
    operator = Router(
        rows=rows,
        width=sizes.hidden_size,
        experts=sizes.num_experts,
        top_k=sizes.top_k,
        eps=sizes.eps,
        factor=sizes.factor,
        weight_dtype=router.proj.weight.dtype,
        out_dtype=sizes.dtype,
    )
    args = [x, norms.weight, router.proj.weight, router.per_expert_scale.weight]
    chosen = (x.shape[0], sizes.top_k)
    specs: list[TensorSpec] = [
        (chosen, "int32"),
        (chosen, "float32"),
        (tuple(x.shape), sizes.dtype),
    ]
    return emit(operator, args, specs)
