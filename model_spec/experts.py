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
    CombineExperts,
    GroupRows,
    Router,
    RouterScores,
)
from gemma4_compile.model_spec.pending import PendingChoice


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
    n, width = x.shape
    if rows == 1:
        choice, hidden = _score(config, router, norm, x, activation_dtype)
        gated = experts.gate_up_proj.gate_up(hidden, choice, experts.down_proj)
        return experts.down_proj.down(gated, choice)
    ids, weights, hidden = _route(config, router, norm, x, rows, activation_dtype)
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
    top_k, fields = config.top_k_experts, _fields(config, router, activation_dtype)
    args = [
        x,
        router.scale.weight,
        router.proj.weight,
        router.per_expert_scale.weight,
        norm.weight,
    ]
    chosen = (x.shape[0], top_k)
    specs: list[TensorSpec] = [
        (chosen, "int32"),
        (chosen, "float32"),
        (tuple(x.shape), activation_dtype),
    ]
    return emit(Router(rows=rows, top_k=top_k, **fields), args, specs)


def _score(
    config: Gemma4Config,
    router: RouterWeights,
    norm: Vector,
    x: nn.Tensor,
    activation_dtype: str,
) -> tuple[PendingChoice, nn.Tensor]:
    """One position, whose projection a single block would read alone: the choice, and its x."""
    scores, hidden = emit(
        RouterScores(**_fields(config, router, activation_dtype)),
        [x, router.scale.weight, router.proj.weight, norm.weight],
        [((1, config.num_experts), "float32"), (tuple(x.shape), activation_dtype)],
    )
    choice = PendingChoice(scores, router.per_expert_scale.weight, config.top_k_experts)
    return choice, hidden


def _fields(config: Gemma4Config, router: RouterWeights, activation_dtype: str) -> dict[str, Any]:
    width = config.hidden_size
    return {
        "width": width,
        "experts": config.num_experts,
        "eps": config.rms_norm_eps,
        "factor": float(width) ** -0.5,
        "weight_dtype": router.proj.weight.dtype,
        "out_dtype": activation_dtype,
    }
