"""Limits of fusion on a target: its buffers, shared memory and measured sizes as one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tvm import relax

from gemma4_compile.model_spec.layers.attention import AttentionOptions, JointSplits
from gemma4_compile.model_spec.layers.kv_cache import KvLimits
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.passes.operator_graph import OperatorCall
from gemma4_compile.targets.attention_tuning import DecodeAttentionTuning
from gemma4_compile.targets.kernels.attention.subgroup_matrix_chunk_shape import (
    subgroup_chunk_heads,
)
from gemma4_compile.targets.kernels.attention.tensor_core_chunk_shape import (
    CHANNELS,
    LARGEST_HEAD,
    divided,
)
from gemma4_compile.targets.kernels.linear.float_gemv import fused_width
from gemma4_compile.targets.kernels.linear.gemv_pair import fits_one_launch
from gemma4_compile.targets.kernels.tiles.few_row_shape import reads_tiles
from gemma4_compile.targets.kernels.tiles.subgroup_chunk_products import takes_halves
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import has_subgroup_matrices
from gemma4_compile.targets.kernels.tiles.tensor_operations import takes_layout
from gemma4_compile.targets.kernels.tiles.warpgroup_tiles import takes_warpgroups
from gemma4_compile.targets.spec import INT8, UNLIMITED, WORDS, TargetSpec
from gemma4_compile.targets.tuning import FusionTuning

CPU_SPLITS = AttentionOptions(sliding_splits=1, full_splits=1)


@dataclass(frozen=True)
class FusionLimits:
    """Limits of one kernel.

    Attributes
    ----------
    max_buffers : storage buffers, None for any number
    width : channels of the longest vector that a kernel may norm or quantise for itself
    int8 : activations are quantised to int8 where the weights allow it
    tuning : measured sizes
    few_rows : splits of the keys of a few rows; None where few rows have no kernels of their own
    reads_tiles : whether a matmul of a few rows has a kernel that reads them in tiles, by its
        matrix; None where none has
    takes_halves : whether a chunk's matmul on packed rows has a kernel that multiplies float16, by
        its matrix; None where none has
    experts_in_halves : and of experts
    takes_by_halves : whether a chunk's matmul on floats has a kernel that multiplies by float16, by
        its matrix; None where none has
    divided : a chunk's attention with memory for a kernel that divides a short chunk's keys, None
        where it has none; None where no attention has one
    fits_one_launch : whether two matmuls of one position may be one launch; None where a launch
        costs nothing
    folds_steps : kernels of floats round to a checkpoint's steps what they read and what they make
    halves_rows : rows that are multiplied as float16 become it in a launch of their own
    """

    max_buffers: int | None
    width: int = UNLIMITED
    int8: bool = False
    tuning: FusionTuning = field(default_factory=FusionTuning)
    few_rows: AttentionOptions | None = None
    reads_tiles: Callable[[WeightLayout], bool] | None = None
    takes_halves: Callable[[WeightLayout], bool] | None = None
    experts_in_halves: bool = True
    takes_by_halves: Callable[[WeightLayout], bool] | None = None
    divided: Callable[[PrefillAttention], DividedAttention | None] | None = None
    fits_one_launch: Callable[[Linear, Linear], bool] | None = None
    folds_steps: bool = True
    halves_rows: bool = False

    def binds(self, tensors: Sequence[relax.Expr], results: int) -> bool:
        """Return whether a kernel may bind these arguments and as many results."""
        return self.max_buffers is None or buffers(tensors) + results <= self.max_buffers


def buffers(args: Sequence[relax.Expr]) -> int:
    """Arguments that are bound buffers: all but scalars."""
    return sum(isinstance(arg.ty, relax.TensorType) for arg in args)


def fusion_limits(target: TargetSpec) -> FusionLimits:
    """The limits of a target."""
    int8, tuning = target.activations == INT8, target.tuning.fusion
    if not target.is_gpu:
        # Its schedules would round each channel once for every row of the weight.
        return FusionLimits(None, UNLIMITED, int8, tuning, folds_steps=False)
    width, splits = fused_width(target), few_row_options(target)
    tiles = partial(reads_tiles, spec=target) if target.tensor_cores else None
    halves = partial(takes_halves, spec=target) if computes_halves(target) else None
    if target.warpgroups:
        halves = partial(takes_warpgroups, spec=target)
    return FusionLimits(
        target.max_storage_buffers,
        width,
        int8,
        tuning,
        splits,
        tiles,
        halves,
        not target.warpgroups,
        takes_layout if target.tensor_operations else None,
        halves_rows=computes_halves(target),
        divided=partial(divided, spec=target) if target.tensor_cores else None,
        fits_one_launch=partial(fits_one_launch, spec=target),
    )


def computes_halves(target: TargetSpec) -> bool:
    """Return whether prompts are computed in subgroup matrices, which multiply float16 alone."""
    return has_subgroup_matrices(target) and target.float16 != WORDS


def attention_options(target: TargetSpec, cache_dtype: str = "float16") -> AttentionOptions:
    """Splits of a decode step's keys on a target."""
    if not target.is_gpu:
        return CPU_SPLITS
    tuning = target.tuning.decode_attention
    channels = tuning.split_channels
    if cache_dtype == "float32" and tuning.float32_split_channels:
        channels = tuning.float32_split_channels
    return AttentionOptions(
        tuning.sliding_splits,
        tuning.full_splits,
        tuning.max_blocks,
        channels,
        rounded_heads=_rounded_heads(target),
        joint=_joint_splits(tuning),
    )


def _joint_splits(tuning: DecodeAttentionTuning) -> JointSplits | None:
    if not tuning.joint_splits:
        return None
    return JointSplits(tuning.joint_splits, tuning.joint_blocks, tuning.joint_grains)


def _rounded_heads(target: TargetSpec) -> tuple[int, ...]:
    """Channels of heads that the kernels of a chunk's attention in matrix units take."""
    if target.tensor_cores:
        return tuple(range(CHANNELS, LARGEST_HEAD + 1, CHANNELS))
    return subgroup_chunk_heads(target) if computes_halves(target) else ()


def kv_limits(target: TargetSpec, context_length: int | None) -> KvLimits | None:
    """What divides the keys of full layers on a target; None where nothing does."""
    if context_length is None or target.max_binding_bytes is None:
        return None
    return KvLimits(context_length, target.max_binding_bytes)


def few_row_options(target: TargetSpec) -> AttentionOptions:
    """Splits of the keys of a few rows on a target."""
    options = attention_options(target)
    most = target.tuning.few_rows.full_splits
    return replace(options, full_splits=min(options.full_splits, most))


def weight_count(call: OperatorCall[Linear]) -> int:
    """Weights of the matrix that a matmul reads."""
    layout = call.operator.layout
    return layout.rows * layout.cols
