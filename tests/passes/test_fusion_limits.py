"""Limits of fusion: which arguments take a buffer, and what a target's limits become."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import relax

from gemma4_compile.compile.build import decoder_options
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import ONE
from gemma4_compile.passes.fusion_limits import (
    CPU_SPLITS,
    FusionLimits,
    attention_options,
    buffers,
    few_row_options,
    fusion_limits,
    weight_count,
)
from gemma4_compile.passes.operator_graph import OperatorCall
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import INT8, UNLIMITED
from gemma4_compile.targets.tuning import FusionTuning, Tuning

TENSOR = relax.Var("x", relax.TensorType([2], "float32"))
SCALAR = relax.prim_value(3)


def test_scalars_take_no_buffer() -> None:
    assert buffers([TENSOR, SCALAR, TENSOR]) == 2
    assert buffers([]) == 0


@pytest.mark.parametrize(("max_buffers", "fits"), [(3, False), (4, True), (None, True)])
def test_results_are_buffers_too(max_buffers: int | None, fits: bool) -> None:
    assert FusionLimits(max_buffers).binds([TENSOR, TENSOR, SCALAR], 2) is fits


def test_a_cpu_has_no_limits_but_its_tuning() -> None:
    cpu = target_spec("cpu")
    assert fusion_limits(cpu) == FusionLimits(
        None, UNLIMITED, False, cpu.tuning.fusion, folds_steps=False
    )


def test_splits_are_the_cpu_s_or_measured() -> None:
    assert attention_options(target_spec("cpu")) == CPU_SPLITS
    target = target_spec("webgpu")
    found, tuning = attention_options(target), target.tuning.decode_attention
    assert few_row_options(target) == fusion_limits(target).few_rows
    assert few_row_options(target) == replace(found, full_splits=64)
    assert few_row_options(target_spec("cpu")) == CPU_SPLITS
    assert (found.sliding_splits, found.full_splits) == (tuning.sliding_splits, tuning.full_splits)
    assert (found.max_blocks, found.split_channels) == (tuning.max_blocks, tuning.split_channels)
    assert attention_options(target, "float32") == found


def test_keys_in_float32_have_splits_of_their_own_where_that_was_measured() -> None:
    h200 = target_spec("webgpu", "h200")
    halves, floats = (attention_options(h200, dtype) for dtype in ("float16", "float32"))
    assert (halves.split_channels, floats.split_channels) == (16384, 8192)
    assert replace(floats, split_channels=16384) == halves
    options = [decoder_options(RECIPES[name], h200, 512) for name in ("q4f16", "q4f32")]
    assert [option.attention for option in options] == [halves, floats]


@pytest.mark.parametrize("name", ["webgpu", "metal", "cuda"])
def test_a_gpu_has_the_limits_of_its_buffers_and_of_its_shared_memory(name: str) -> None:
    target = target_spec(name)
    limits = fusion_limits(target)
    assert limits.max_buffers == target.max_storage_buffers
    assert 0 < limits.width < target.max_shared_memory_bytes // 4
    more = replace(target, max_shared_memory_bytes=target.max_shared_memory_bytes + 4096)
    assert fusion_limits(more).width == limits.width + 1024
    assert fusion_limits(replace(target, max_shared_memory_bytes=0)).width == 0


@pytest.mark.parametrize("name", ["webgpu", "cpu"])
def test_activations_and_measured_sizes_are_the_target_s(name: str) -> None:
    fusion = FusionTuning(max_weights=7)
    target = replace(target_spec(name), activations=INT8, tuning=Tuning(fusion=fusion))
    limits = fusion_limits(target)
    assert limits.int8
    assert limits.tuning == fusion
    assert not fusion_limits(target_spec(name)).int8


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_weights_are_counted_over_all_row_splits(bits: int) -> None:
    layout = WeightLayout(bits, "float16", 32 if bits else 0, 64, (16, 8))
    call = OperatorCall(Linear(rows=ONE, layout=layout, in_dtype="float16"), [], [])
    assert weight_count(call) == 24 * 64
