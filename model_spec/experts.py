"""The experts beside the dense MLP: router, chosen experts, weighted sum."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.attention import Vector
from gemma4_compile.model_spec.config import Gemma4Config
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.operators.base import TensorSpec, emit
from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.router import (
    EXPERT_TILE,
    ChooseExperts,
    CombineExperts,
    GroupRows,
    Router,
    RouterScores,
)


class RouterWeights(nn.Module):
    """What the router holds; its projection is stored densely."""

    def __init__(self, config: Gemma4Config, dtype: str) -> None:
        self.scale = Vector(config.hidden_size)
        self.proj = nn.Module()
        self.proj.weight = nn.Parameter((config.num_experts, config.hidden_size), dtype)
        self.per_expert_scale = Vector(config.num_experts)


class ExpertWeights(nn.Module):
    """The experts' matrices of one layer."""

    def __init__(self, layer: int, matrices: Matrices) -> None:
        self.gate_up_proj = matrices.experts(f"layers.{layer}.experts.gate_up_proj")
        self.down_proj = matrices.experts(f"layers.{layer}.experts.down_proj")


def run_experts(
    config: Gemma4Config,
    router: RouterWeights,
    norm: Vector,
    experts: ExpertWeights,
    x: nn.Tensor,
    rows: int | None,
    activation_dtype: str,
) -> nn.Tensor:
    """The experts' branch, before its norm.

    Parameters
    ----------
    norm : `pre_feedforward_layernorm_2`
    x : (rows, hidden_size) float32, the residual before any norm (the router norms it by itself)

    Returns
    -------
    nn.Tensor
        (rows, hidden_size) float32.
    """
    top_k = config.top_k_experts
    ids, weights, hidden = _route(config, router, norm, x, rows, activation_dtype)
    n, width = x.shape
    if rows == 1:
        chosen = experts.gate_up_proj.gate_up(hidden, ids, experts.down_proj)
        return experts.down_proj.down(chosen, ids, weights)
    group = GroupRows(config.num_experts, top_k, EXPERT_TILE)
    specs = [((n * top_k,), "int32"), ((group.tile_count(n * top_k), 3), "int32")]
    order, tiles = emit(group, [ids], specs)
    gated = experts.gate_up_proj.grouped(hidden, order, tiles, top_k, Tail.GELU_PAIRS)
    outputs = experts.down_proj.grouped(gated, order, tiles, top_k, Tail.NONE)
    combine = CombineExperts(rows, top_k, width)
    return emit(combine, [outputs, weights], [((n, width), "float32")])[0]


def _route(
    config: Gemma4Config,
    router: RouterWeights,
    norm: Vector,
    x: nn.Tensor,
    rows: int | None,
    activation_dtype: str,
) -> tuple[nn.Tensor, ...]:
    """Ids (rows, top_k) int32, weights (rows, top_k) f32, and the normed x of the experts."""
    experts, top_k, width = config.num_experts, config.top_k_experts, config.hidden_size
    fields: dict[str, Any] = {
        "width": width,
        "experts": experts,
        "eps": config.rms_norm_eps,
        "factor": float(width) ** -0.5,
        "weight_dtype": router.proj.weight.dtype,
        "out_dtype": activation_dtype,
    }
    scale, projection = router.scale.weight, router.proj.weight
    each = router.per_expert_scale.weight
    hidden_spec: TensorSpec = (tuple(x.shape), activation_dtype)
    chosen: list[TensorSpec] = [((x.shape[0], top_k), "int32"), ((x.shape[0], top_k), "float32")]
    if rows != 1:  # a block a position
        args = [x, scale, projection, each, norm.weight]
        return emit(Router(rows=rows, top_k=top_k, **fields), args, [*chosen, hidden_spec])
    # One block would read the whole projection alone.
    scores, hidden = emit(
        RouterScores(**fields),
        [x, scale, projection, norm.weight],
        [((1, experts), "float32"), hidden_spec],
    )
    ids, weights = emit(ChooseExperts(experts, top_k), [scores, each], chosen)
    return ids, weights, hidden
