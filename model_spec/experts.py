"""The experts beside the dense MLP: router, chosen experts, weighted sum."""

from __future__ import annotations

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
    top_k, width = config.top_k_experts, config.hidden_size
    operator = Router(
        rows=rows,
        width=width,
        experts=config.num_experts,
        top_k=top_k,
        eps=config.rms_norm_eps,
        factor=float(width) ** -0.5,
        weight_dtype=router.proj.weight.dtype,
        out_dtype=activation_dtype,
    )
    args = [x, router.scale.weight, router.proj.weight, router.per_expert_scale.weight, norm.weight]
    n = x.shape[0]
    specs: list[TensorSpec] = [
        ((n, top_k), "int32"),
        ((n, top_k), "float32"),
        ((n, width), activation_dtype),
    ]
    ids, weights, hidden = emit(operator, args, specs)
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
