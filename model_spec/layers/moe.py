"""The experts beside the dense MLP: router, chosen experts, weighted sum."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.attention import Vector
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.pending import PendingChoice, PendingRouting
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.moe import (
    EXPERT_TILE,
    CombineExperts,
    PermuteByExpert,
    Router,
)


class RouterWeights(nn.Module):
    """What the router holds; its projection is stored densely."""

    def __init__(self, config: Gemma4Config, dtype: str) -> None:
        self.proj = nn.Module()
        self.proj.weight = nn.Parameter((config.num_experts, config.hidden_size), dtype)
        self.per_expert_scale = Vector(config.num_experts)


class ExpertWeights(nn.Module):
    """The experts' matrices of one layer."""

    def __init__(self, layer: int, matrices: Matrices) -> None:
        self.gate_up_proj = matrices.experts(f"layers.{layer}.experts.gate_up_proj")
        self.down_proj = matrices.experts(f"layers.{layer}.experts.down_proj")


def router_factor(config: Gemma4Config) -> float:
    """What the router's normed input is multiplied by."""
    return float(config.hidden_size) ** -0.5


def run_experts(
    config: Gemma4Config, router: RouterWeights, experts: ExpertWeights, pending: PendingRouting
) -> nn.Tensor:
    """The experts' branch, before its norm.

    Parameters
    ----------
    pending : what follows attention; its residual is there, since the dense MLP has run

    Returns
    -------
    nn.Tensor
        (rows, hidden_size) float32.
    """
    top_k, rows = config.top_k_experts, pending.rows
    n, width = pending.residual.shape
    if rows == 1:
        scale = router.per_expert_scale.weight
        choice = PendingChoice(pending.routed, scale, top_k, int(width))
        gated = experts.gate_up_proj.gate_up(choice, experts.down_proj)
        return experts.down_proj.down(gated, choice)
    ids, weights, hidden = _route(config, router, pending)
    group = PermuteByExpert(config.num_experts, top_k, EXPERT_TILE)
    specs = [((n * top_k,), "int32"), ((group.tile_count(n * top_k), 3), "int32")]
    order, tiles = emit(group, [ids], specs)
    gated = experts.gate_up_proj.grouped(hidden, order, tiles, top_k, Epilogue.GELU_PAIRS)
    outputs = experts.down_proj.grouped(gated, order, tiles, top_k, Epilogue.NONE)
    combine = CombineExperts(rows, top_k, width)
    return emit(combine, [outputs, weights], [((n, width), "float32")])[0]


def _route(
    config: Gemma4Config, router: RouterWeights, pending: PendingRouting
) -> tuple[nn.Tensor, ...]:
    """Ids (rows, top_k) int32, weights (rows, top_k) f32, and the normed x of the experts."""
    top_k, x = config.top_k_experts, pending.residual
    operator = Router(
        rows=pending.rows,
        width=config.hidden_size,
        experts=config.num_experts,
        top_k=top_k,
        eps=config.rms_norm_eps,
        factor=router_factor(config),
        weight_dtype=router.proj.weight.dtype,
        out_dtype=pending.dtype,
    )
    args = [x, pending.vectors, router.proj.weight, router.per_expert_scale.weight]
    chosen = (x.shape[0], top_k)
    specs: list[TensorSpec] = [
        (chosen, "int32"),
        (chosen, "float32"),
        (tuple(x.shape), pending.dtype),
    ]
    return emit(operator, args, specs)
