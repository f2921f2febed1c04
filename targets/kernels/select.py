"""Which kernel runs: from an operator and a target to the function that makes it, on one page.

`ONE_KERNEL` holds the operators that have one kernel on every target; it may still be shaped by the
target's limits and tuning. `select` chooses for the others: by rows, by what the device has (its
capabilities in `TargetSpec`), by sizes. What comes out: tests/unit/targets/kernels/test_select.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

from gemma4_compile.operators.activations import Int8, PackedOutput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.few_row_expert_norms import QuantizedBranchNorms
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import ONE, Chunk, Few, One
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention import (
    subgroup_matrix_patches,
    tensor_core_patches,
)
from gemma4_compile.targets.kernels.attention.combine import make_combine_splits
from gemma4_compile.targets.kernels.attention.decode import make_decode_attention
from gemma4_compile.targets.kernels.attention.few_rows import make_few_row_attention
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
from gemma4_compile.targets.kernels.linear import (
    few_row_tensor_cores,
    subgroup_matrix_gemm,
    tensor_core_gemm,
)
from gemma4_compile.targets.kernels.linear.bounded_gemm import make_bounded_gemm
from gemma4_compile.targets.kernels.linear.embedding import make_embedding
from gemma4_compile.targets.kernels.linear.few_row_gemv import (
    make_few_row_gemv,
    make_few_rows_on_tensor_cores,
)
from gemma4_compile.targets.kernels.linear.gemm import make_gemm
from gemma4_compile.targets.kernels.linear.gemv import make_gemv
from gemma4_compile.targets.kernels.linear.quantize_rows import (
    make_quantize_rows,
    make_quantized_few_row_norm,
    make_quantized_norm,
)
from gemma4_compile.targets.kernels.moe import few_row_expert_tensor_cores
from gemma4_compile.targets.kernels.moe.experts import (
    make_expert_down,
    make_expert_gate_up,
    make_expert_gemm,
)
from gemma4_compile.targets.kernels.moe.few_row_experts import make_few_row_experts
from gemma4_compile.targets.kernels.moe.few_row_norms import (
    make_expert_residual_norm,
    make_quantized_branch_norms,
    make_routed_branch_norms,
)
from gemma4_compile.targets.kernels.moe.int8_experts import (
    make_int8_expert_down,
    make_int8_expert_gate_up,
)
from gemma4_compile.targets.kernels.moe.router import (
    make_combine_experts,
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

ONE_KERNEL: Mapping[str, Factory] = {
    # linear
    "embedding": make_embedding,
    # rounding to int8
    "quantize_rows": make_quantize_rows,
    # experts
    "router": make_router,
    "router_scores": make_router_scores,
    "top_k_experts": make_top_k_experts,
    "permute_by_expert": make_permute_by_expert,
    "combine_experts": make_combine_experts,
    # attention
    "qk_norm_rope_cache": make_qk_norm_rope_cache,
    "combine_splits": make_combine_splits,
    "prefill_attention": make_prefill_attention,
    "last_visible_rows": make_last_visible_rows,
    "kept_rows": make_kept_rows,
    "shifted_rotary": make_shifted_rotary,
    "patch_qk_norm_rope": make_patch_qk_norm_rope,
    "relative_attention": make_relative_attention,
    # norms
    "rms_norm": make_rms_norm,
    "clipped_norm": make_clipped_norm,
    "per_layer_inputs": make_per_layer_inputs,
    "take_last_row": make_take_last_row,
    # sampling and drafting
    "bitmask": make_bitmask,
    "logit_bias": make_logit_bias,
    "penalty": make_penalty,
    "softmax_partials": make_softmax_partials,
    "softmax_probs": make_softmax_probs,
    "top_p_histogram": make_top_p_histogram,
    "sample_top_p": make_sample_top_p,
    "best_token_partials": make_best_token_partials,
    "best_token": make_best_token,
    "cluster_tokens": make_cluster_tokens,
    "candidate_logits": make_candidate_logits,
    # pictures and sounds
    "pixel_patches": make_pixel_patches,
    "pixel_norm": make_pixel_norm,
    "patch_rotary": make_patch_rotary,
    "picture_blocks": make_picture_blocks,
    "picture_positions": make_picture_positions,
    "position_norms": make_position_norms,
    "add_patch_positions": make_add_patch_positions,
    "pool_patches": make_pool_patches,
    "sound_frames": make_pointwise,
    "windowed_transform": make_pointwise,
    "magnitude": make_pointwise,
    "log_mel": make_pointwise,
    "subsample_conv": make_subsample_conv,
    "add_clipped": make_pointwise,
    "clip": make_pointwise,
    "gated_conv": make_pointwise,
}


def select(operator: Operator, spec: TargetSpec) -> Factory:
    """The function that makes an operator's kernel for a target; KeyError if there is none."""
    match operator:
        case BoundedLinear():
            if tensor_core_gemm.fits_tensor_cores(operator, spec):
                return tensor_core_gemm.make_tensor_core_gemm
            if subgroup_matrix_gemm.fits_subgroup_matrices(operator, spec):
                return subgroup_matrix_gemm.make_subgroup_matrix_gemm
            return make_bounded_gemm
        case Linear(rows=Few()):
            on_tensor_cores = few_row_tensor_cores.fits_tensor_cores(operator, spec)
            return make_few_rows_on_tensor_cores if on_tensor_cores else make_few_row_gemv
        case Linear(rows=Chunk()):
            return make_gemm
        case Linear():
            return make_gemv
        case ExpertLinear():
            return _of_experts(operator, spec)
        case ResidualNorm(rows=One(), output=PackedOutput()):
            return make_quantized_norm
        case ResidualNorm(branches=2):
            return make_expert_residual_norm
        case ResidualNorm(output=PackedOutput()):
            return make_quantized_few_row_norm
        case ResidualNorm():
            return make_residual_norm
        case SplitAttention(rows=rows):
            return make_decode_attention if rows == ONE else make_few_row_attention
        case QuantizedBranchNorms(experts=0):
            return make_quantized_branch_norms
        case QuantizedBranchNorms():
            return make_routed_branch_norms
        case PatchAttention():
            if tensor_core_patches.fits_tensor_cores(operator, spec):
                return tensor_core_patches.make_tensor_core_attention
            if subgroup_matrix_patches.fits_subgroup_matrices(operator, spec):
                return subgroup_matrix_patches.make_subgroup_matrix_attention
            return make_patch_attention
    return ONE_KERNEL[operator.kind]


def _of_experts(operator: ExpertLinear, spec: TargetSpec) -> Factory:
    match operator:
        case ExpertLinear(rows=Few()):
            on_tensor_cores = few_row_expert_tensor_cores.fits_tensor_cores(operator, spec)
            return (
                few_row_expert_tensor_cores.make_few_row_expert_tensor_cores
                if on_tensor_cores
                else make_few_row_experts
            )
        case ExpertLinear(rows=Chunk()):
            return make_expert_gemm
        case ExpertLinear(activations=Int8()):
            return make_int8_expert_gate_up if operator.is_gate_up else make_int8_expert_down
    return make_expert_gate_up if operator.is_gate_up else make_expert_down
