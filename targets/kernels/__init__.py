"""GPU kernels of the operators.

One factory an operator kind, each with the signature of the operator's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tvm import tirx

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.base import Operator
from gemma4_compile.targets.kernels.attention.combine import make_combine_splits
from gemma4_compile.targets.kernels.attention.decode import (
    make_decode_attention,
    make_split_attention,
)
from gemma4_compile.targets.kernels.attention.few_rows import (
    make_combine_few_rows,
    make_few_row_attention,
)
from gemma4_compile.targets.kernels.attention.last_visible_rows import make_last_visible_rows
from gemma4_compile.targets.kernels.attention.padded_rows import (
    make_kept_rows,
    make_shifted_rotary,
)
from gemma4_compile.targets.kernels.attention.patches import (
    make_patch_attention,
    make_patch_qk_norm_rope,
)
from gemma4_compile.targets.kernels.attention.prefill import make_prefill_attention
from gemma4_compile.targets.kernels.attention.qk_norm_rope_cache import make_qk_norm_rope_cache
from gemma4_compile.targets.kernels.audio.clipped_norm import make_clipped_norm
from gemma4_compile.targets.kernels.audio.relative_attention import make_relative_attention
from gemma4_compile.targets.kernels.audio.subsample_conv import make_subsample_conv
from gemma4_compile.targets.kernels.common.pointwise import make_pointwise
from gemma4_compile.targets.kernels.drafting.drafting import (
    make_best_token,
    make_best_token_partials,
    make_candidate_logits,
    make_cluster_tokens,
)
from gemma4_compile.targets.kernels.linear.bounded_gemm import make_bounded_gemm
from gemma4_compile.targets.kernels.linear.embedding import make_embedding
from gemma4_compile.targets.kernels.linear.few_row_gemv import make_few_row_gemv
from gemma4_compile.targets.kernels.linear.few_row_quantize import (
    make_quantized_few_row_combine,
    make_quantized_few_row_norm,
)
from gemma4_compile.targets.kernels.linear.gemm import make_gemm
from gemma4_compile.targets.kernels.linear.gemv import make_gemv
from gemma4_compile.targets.kernels.linear.int8_gemv import make_int8_gemv
from gemma4_compile.targets.kernels.linear.normed_gemv import make_combined_gemv, make_normed_gemv
from gemma4_compile.targets.kernels.linear.quantize_rows import (
    make_quantize_rows,
    make_quantized_combine,
    make_quantized_norm,
)
from gemma4_compile.targets.kernels.moe.experts import (
    make_expert_down,
    make_expert_gate_up,
    make_expert_gemm,
)
from gemma4_compile.targets.kernels.moe.few_row_experts import make_few_row_experts
from gemma4_compile.targets.kernels.moe.few_row_norms import (
    make_few_row_expert_norm,
    make_quantized_branch_norms,
    make_routed_branch_norms,
)
from gemma4_compile.targets.kernels.moe.few_row_router import (
    make_few_row_router_scores,
)
from gemma4_compile.targets.kernels.moe.int8_experts import (
    make_int8_expert_down,
    make_int8_expert_gate_up,
)
from gemma4_compile.targets.kernels.moe.router import (
    make_combine_experts,
    make_expert_residual_norm,
    make_permute_by_expert,
    make_router,
    make_router_scores,
    make_top_k_experts,
)
from gemma4_compile.targets.kernels.norms.norms import (
    make_per_layer_inputs,
    make_residual_norm,
    make_rms_norm,
    make_take_last_row,
)
from gemma4_compile.targets.kernels.sampling.logits import (
    make_bitmask,
    make_logit_bias,
    make_penalty,
)
from gemma4_compile.targets.kernels.sampling.softmax import (
    make_softmax_partials,
    make_softmax_probs,
)
from gemma4_compile.targets.kernels.sampling.top_p import make_sample_top_p
from gemma4_compile.targets.kernels.sampling.top_p_histogram import make_top_p_histogram
from gemma4_compile.targets.kernels.vision.patches import (
    make_add_patch_positions,
    make_patch_rotary,
    make_pixel_patches,
    make_pool_patches,
)
from gemma4_compile.targets.kernels.vision.picture import (
    make_picture_blocks,
    make_picture_positions,
)
from gemma4_compile.targets.kernels.vision.unified import make_pixel_norm, make_position_norms
from gemma4_compile.targets.spec import TargetSpec

Factory = Callable[[Any, TargetSpec], tirx.PrimFunc]
"""Makes the kernel of one class of operators, or of several; it knows which it is given."""

FACTORIES: Mapping[str, Factory] = {
    "add_patch_positions": make_add_patch_positions,
    "add_clipped": make_pointwise,
    "best_token": make_best_token,
    "best_token_partials": make_best_token_partials,
    "bitmask": make_bitmask,
    "bounded_linear": make_bounded_gemm,
    "patch_attention": make_patch_attention,
    "patch_qk_norm_rope": make_patch_qk_norm_rope,
    "patch_rotary": make_patch_rotary,
    "picture_blocks": make_picture_blocks,
    "picture_positions": make_picture_positions,
    "pixel_norm": make_pixel_norm,
    "pixel_patches": make_pixel_patches,
    "pool_patches": make_pool_patches,
    "position_norms": make_position_norms,
    "prefill_attention": make_prefill_attention,
    "candidate_logits": make_candidate_logits,
    "clip": make_pointwise,
    "clipped_norm": make_clipped_norm,
    "cluster_tokens": make_cluster_tokens,
    "top_k_experts": make_top_k_experts,
    "combine_few_rows": make_combine_few_rows,
    "combine_experts": make_combine_experts,
    "decode_attention": make_decode_attention,
    "embedding": make_embedding,
    "expert_down": make_expert_down,
    "expert_gate_up": make_expert_gate_up,
    "expert_gemm": make_expert_gemm,
    "expert_residual_norm": make_expert_residual_norm,
    "permute_by_expert": make_permute_by_expert,
    "int8_expert_down": make_int8_expert_down,
    "int8_expert_gate_up": make_int8_expert_gate_up,
    "int8_expert_gemm": make_expert_gemm,
    "int8_few_row_experts": make_few_row_experts,
    "int8_few_row_linear": make_few_row_gemv,
    "int8_linear": make_gemm,
    "int8_combined_linear": make_int8_gemv,
    "int8_normed_linear": make_int8_gemv,
    "int8_routed_linear": make_int8_gemv,
    "kept_rows": make_kept_rows,
    "last_visible_rows": make_last_visible_rows,
    "linear": make_gemm,
    "few_row_attention": make_few_row_attention,
    "normed_few_row_attention": make_few_row_attention,
    "few_row_expert_norm": make_few_row_expert_norm,
    "few_row_experts": make_few_row_experts,
    "few_row_linear": make_few_row_gemv,
    "few_row_router_scores": make_few_row_router_scores,
    "few_row_top_k_experts": make_top_k_experts,
    "quantized_branch_norms": make_quantized_branch_norms,
    "quantized_few_row_combine": make_quantized_few_row_combine,
    "quantized_few_row_norm": make_quantized_few_row_norm,
    "gated_conv": make_pointwise,
    "log_mel": make_pointwise,
    "magnitude": make_pointwise,
    "relative_attention": make_relative_attention,
    "sound_frames": make_pointwise,
    "subsample_conv": make_subsample_conv,
    "windowed_transform": make_pointwise,
    "logit_bias": make_logit_bias,
    "combine_splits": make_combine_splits,
    "combined_linear": make_combined_gemv,
    "normed_linear": make_normed_gemv,
    "top_p_histogram": make_top_p_histogram,
    "penalty": make_penalty,
    "picture_prefill_attention": make_prefill_attention,
    "per_layer_inputs": make_per_layer_inputs,
    "qk_norm_rope_cache": make_qk_norm_rope_cache,
    "residual_norm": make_residual_norm,
    "rms_norm": make_rms_norm,
    "quantize_rows": make_quantize_rows,
    "quantized_combine": make_quantized_combine,
    "quantized_norm": make_quantized_norm,
    "routed_branch_norms": make_routed_branch_norms,
    "routed_linear": make_normed_gemv,
    "router": make_router,
    "router_scores": make_router_scores,
    "sample_top_p": make_sample_top_p,
    "shifted_rotary": make_shifted_rotary,
    "softmax_partials": make_softmax_partials,
    "softmax_probs": make_softmax_probs,
    "split_attention": make_split_attention,
    "take_last_row": make_take_last_row,
}
OF_ONE_ROW: Mapping[str, Factory] = {"int8_linear": make_int8_gemv, "linear": make_gemv}
"""Factories of operators whose single position has a kernel of its own."""


def factory_of(operator: Operator) -> Factory:
    """The function that makes an operator's kernel; KeyError if there is none."""
    if getattr(operator, "rows", None) == 1 and operator.kind in OF_ONE_ROW:
        return OF_ONE_ROW[operator.kind]
    return FACTORIES[operator.kind]


@lru_cache(maxsize=1024)
def make_kernel(operator: Operator, spec: TargetSpec) -> tirx.PrimFunc:
    """The kernel of an operator under a target's limits.

    Raises
    ------
    LoweringError
        If there is none: an operator without a kernel would silently run as unscheduled loops.
    """
    if operator.kind not in FACTORIES:
        raise LoweringError(f"no `{spec.name}` kernel for operator `{operator.kind}`")
    return factory_of(operator)(operator, spec)
