"""Which kernel runs: from an operator and a target to the function that makes it, on one page.

`ONE_KERNEL` holds the operators that have one kernel on every target; it may still be shaped by the
target's limits and tuning. `select` chooses for the others: by rows, by what the device has (its
capabilities in `TargetSpec`), by sizes. What comes out: tests/unit/targets/kernels/test_select.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tvm import tirx

from gemma4_compile.operators.activations import Int8, PackedOutput
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.few_row_expert_norms import QuantizedBranchNorms
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.rows import Chunk, Few, One
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention import (
    combine,
    decode,
    few_rows,
    host_attention,
    last_visible_rows,
    padded_rows,
    padded_texts,
    patches,
    prefill,
    qk_norm_rope_cache,
    simdgroup_chunk,
    simdgroup_patches,
    simdgroup_spans,
    spans,
    subgroup_matrix_chunk,
    subgroup_matrix_chunk_shape,
    subgroup_matrix_patches,
    tensor_core_chunk,
    tensor_core_divided_chunk,
    tensor_core_patches,
)
from gemma4_compile.targets.kernels.audio import clipped_norm, relative_attention, subsample_conv
from gemma4_compile.targets.kernels.common import pointwise
from gemma4_compile.targets.kernels.drafting import drafting
from gemma4_compile.targets.kernels.linear import (
    bounded_gemm,
    embedding,
    few_row_gemv,
    few_row_tensor_cores,
    gemm,
    gemv,
    gemv_pair,
    halve_rows,
    host_matmul,
    quantize_rows,
    sparse_gate,
    subgroup_matrix_gemm,
    tensor_core_gemm,
)
from gemma4_compile.targets.kernels.moe import (
    experts,
    few_row_expert_tensor_cores,
    few_row_experts,
    few_row_norms,
    int8_experts,
    router,
)
from gemma4_compile.targets.kernels.norms import altup, norms, pooling
from gemma4_compile.targets.kernels.sampling import (
    draw_token,
    draws,
    logits,
    softmax,
    top_p,
    top_p_histogram,
)
from gemma4_compile.targets.kernels.tiles.tensor_operations import takes_layout
from gemma4_compile.targets.kernels.vision import patches as vision_patches
from gemma4_compile.targets.kernels.vision import picture, unified
from gemma4_compile.targets.spec import TargetSpec

Factory = Callable[[Any, TargetSpec], tirx.PrimFunc]
"""Makes the kernel of one class of operators, or of several; it knows which it is given."""

HostFactory = Callable[[], tirx.PrimFunc]
"""Makes the kernel of an operator on a CPU, where kernels ask for no limits."""

ONE_KERNEL: Mapping[str, Factory] = {
    # linear
    "embedding": embedding.make_embedding,
    "linear_pair": gemv_pair.make_gemv_pair,
    "sparse_gate": sparse_gate.make_sparse_gate,
    # rounding to int8
    "quantize_rows": quantize_rows.make_quantize_rows,
    "halve_rows": halve_rows.make_halve_rows,
    "round_to_step": pointwise.make_pointwise,
    # experts
    "router": router.make_router,
    "router_scores": router.make_router_scores,
    "top_k_experts": router.make_top_k_experts,
    "permute_by_expert": router.make_permute_by_expert,
    "combine_experts": router.make_combine_experts,
    # attention
    "qk_norm_rope_cache": qk_norm_rope_cache.make_qk_norm_rope_cache,
    "combine_splits": combine.make_combine_splits,
    "last_visible_rows": last_visible_rows.make_last_visible_rows,
    "kept_rows": padded_rows.make_kept_rows,
    "shifted_rotary": padded_rows.make_shifted_rotary,
    "packed_texts": padded_texts.make_packed_texts,
    "first_rows": padded_texts.make_first_rows,
    "patch_qk_norm_rope": patches.make_patch_qk_norm_rope,
    "span_rotary": spans.make_span_rotary,
    "qkv_norm_rope": spans.make_qkv_norm_rope,
    "relative_attention": relative_attention.make_relative_attention,
    # norms
    "rms_norm": norms.make_rms_norm,
    "clipped_norm": clipped_norm.make_clipped_norm,
    "per_layer_inputs": norms.make_per_layer_inputs,
    "take_last_row": norms.make_take_last_row,
    "mean_rows": pooling.make_mean_rows,
    "unit_rows": pooling.make_unit_rows,
    # several residual streams
    "altup_expand": altup.make_altup_expand,
    "altup_predict": altup.make_altup_predict,
    "laurel_residual": altup.make_laurel_residual,
    "altup_correct": altup.make_altup_correct,
    "altup_inject": altup.make_altup_inject,
    "altup_collapse": altup.make_altup_collapse,
    "split_streams": altup.make_split_streams,
    "take_stream": altup.make_take_stream,
    # sampling and drafting
    "bitmask": logits.make_bitmask,
    "logit_bias": logits.make_logit_bias,
    "penalty": logits.make_penalty,
    "softmax_partials": softmax.make_softmax_partials,
    "softmax_probs": softmax.make_softmax_probs,
    "top_p_histogram": top_p_histogram.make_top_p_histogram,
    "sample_top_p": top_p.make_sample_top_p,
    "draw_partials": softmax.make_softmax_partials,
    "draw_probs": draws.make_draw_probs,
    "top_p_bin": draws.make_top_p_bin,
    "draw_top_p": draw_token.make_draw_top_p,
    "best_token_partials": drafting.make_best_token_partials,
    "best_token": drafting.make_best_token,
    "cluster_tokens": drafting.make_cluster_tokens,
    "candidate_logits": drafting.make_candidate_logits,
    # pictures and sounds
    "pixel_patches": vision_patches.make_pixel_patches,
    "pixel_norm": unified.make_pixel_norm,
    "patch_rotary": vision_patches.make_patch_rotary,
    "picture_blocks": picture.make_picture_blocks,
    "picture_positions": picture.make_picture_positions,
    "position_norms": unified.make_position_norms,
    "add_patch_positions": vision_patches.make_add_patch_positions,
    "pool_patches": vision_patches.make_pool_patches,
    "sound_frames": pointwise.make_pointwise,
    "windowed_transform": pointwise.make_pointwise,
    "magnitude": pointwise.make_pointwise,
    "log_mel": pointwise.make_pointwise,
    "subsample_conv": subsample_conv.make_subsample_conv,
    "add_clipped": pointwise.make_pointwise,
    "clip": pointwise.make_pointwise,
    "gated_conv": pointwise.make_pointwise,
}


def select(operator: Operator, spec: TargetSpec) -> Factory:
    """The function that makes an operator's kernel for a target; KeyError if there is none."""
    match operator:
        case BoundedLinear():
            if tensor_core_gemm.fits_tensor_cores(operator, spec):
                return tensor_core_gemm.make_tensor_core_gemm
            if subgroup_matrix_gemm.fits_subgroup_matrices(operator, spec):
                return subgroup_matrix_gemm.make_subgroup_matrix_gemm
            if spec.tensor_operations and takes_layout(operator.layout):
                return bounded_gemm.make_tensor_bounded_gemm
            if bounded_gemm.fits_simdgroups(operator, spec):
                return bounded_gemm.make_simdgroup_bounded_gemm
            return bounded_gemm.make_bounded_gemm
        case Linear(rows=Few()):
            on_tensor_cores = few_row_tensor_cores.fits_tensor_cores(operator, spec)
            return (
                few_row_gemv.make_few_rows_on_tensor_cores
                if on_tensor_cores
                else few_row_gemv.make_few_row_gemv
            )
        case Linear(rows=Chunk()):
            if operator.in_halves:
                on_warpgroups = spec.warpgroups and not operator.takes_halved_rows
                return (
                    gemm.make_warpgroup_gemm if on_warpgroups else gemm.make_subgroup_matrix_chunk
                )
            if operator.by_halves:
                return gemm.make_tensor_gemm
            if gemm.fits_byte_tensor_cores(operator, spec):
                return gemm.make_byte_tensor_core_gemm
            on_simdgroups = gemm.fits_simdgroups(operator, spec)
            return gemm.make_simdgroup_gemm if on_simdgroups else gemm.make_gemm
        case Linear():
            return gemv.make_gemv
        case ExpertLinear():
            return _of_experts(operator, spec)
        case ResidualNorm(rows=One(), output=PackedOutput()):
            return quantize_rows.make_quantized_norm
        case ResidualNorm(branches=2):
            return few_row_norms.make_expert_residual_norm
        case ResidualNorm(output=PackedOutput()):
            return quantize_rows.make_quantized_few_row_norm
        case ResidualNorm():
            return norms.make_residual_norm
        case SplitAttention(rows=Few()):
            return few_rows.make_few_row_attention
        case SplitAttention():
            return decode.make_decode_attention
        case QuantizedBranchNorms(experts=0):
            return few_row_norms.make_quantized_branch_norms
        case QuantizedBranchNorms():
            return few_row_norms.make_routed_branch_norms
        case DividedAttention():
            return tensor_core_divided_chunk.make_tensor_core_divided_chunk
        case PrefillAttention():
            if tensor_core_chunk.fits_tensor_cores(operator, spec):
                return tensor_core_chunk.make_tensor_core_chunk_attention
            if subgroup_matrix_chunk_shape.fits_subgroup_matrices(operator, spec):
                return subgroup_matrix_chunk.make_subgroup_matrix_chunk_attention
            if simdgroup_chunk.fits_simdgroups(operator, spec):
                return simdgroup_chunk.make_simdgroup_chunk_attention
            return prefill.make_prefill_attention
        case PatchAttention():
            if tensor_core_patches.fits_tensor_cores(operator, spec):
                return tensor_core_patches.make_tensor_core_attention
            if subgroup_matrix_patches.fits_subgroup_matrices(operator, spec):
                return subgroup_matrix_patches.make_subgroup_matrix_attention
            if simdgroup_patches.fits_simdgroups(operator, spec):
                return simdgroup_patches.make_simdgroup_patch_attention
            return patches.make_patch_attention
        case SpanAttention():
            if simdgroup_spans.fits_simdgroups(operator, spec):
                return simdgroup_spans.make_simdgroup_span_attention
            return spans.make_span_attention
    return ONE_KERNEL[operator.kind]


def _of_experts(operator: ExpertLinear, spec: TargetSpec) -> Factory:
    match operator:
        case ExpertLinear(rows=Few()):
            on_tensor_cores = few_row_expert_tensor_cores.fits_tensor_cores(operator, spec)
            return (
                few_row_expert_tensor_cores.make_few_row_expert_tensor_cores
                if on_tensor_cores
                else few_row_experts.make_few_row_experts
            )
        case ExpertLinear(rows=Chunk()):
            if operator.in_halves:
                return experts.make_subgroup_matrix_experts
            if operator.by_halves:
                return experts.make_tensor_experts
            on_tensor_cores = experts.fits_byte_tensor_cores(operator, spec)
            return (
                experts.make_byte_tensor_core_experts
                if on_tensor_cores
                else experts.make_expert_gemm
            )
        case ExpertLinear(activations=Int8()):
            return (
                int8_experts.make_int8_expert_gate_up
                if operator.is_gate_up
                else int8_experts.make_int8_expert_down
            )
    return experts.make_expert_gate_up if operator.is_gate_up else experts.make_expert_down


def select_host(operator: Operator) -> HostFactory | None:
    """The function that makes an operator's kernel for a CPU; None where its definition runs."""
    match operator:
        case Linear():
            return partial(host_matmul.make_host_matmul, operator)
        case PrefillAttention() | SplitAttention() | SpanAttention() | PatchAttention():
            return partial(host_attention.make_host_attention, operator)
    return None
