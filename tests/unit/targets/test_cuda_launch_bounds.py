"""Kernels for CUDA have the registers that they ask for, or that are left by so many blocks."""

from __future__ import annotations

import pytest
from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.operators.tir import function, store
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.common.blocks import launch, resident
from tests.matmuls import int8_linear
from tests.unit.targets.test_cuda_intrinsics import cuda_source


def kernel(blocks: int) -> tirx.PrimFunc:
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (64,), "float32") for name in "xy")
        with launch(64, 1) as (_, _, thread), resident(blocks):
            store(y, x[thread] + f32(1.0), thread)
    return build.result


@pytest.mark.parametrize(("blocks", "bound"), [(0, 1), (1, 1), (3, 3)])
def test_every_kernel_says_how_many_blocks_are_resident(blocks: int, bound: int) -> None:
    assert f"__launch_bounds__(64, {bound})" in cuda_source(kernel(blocks))


@pytest.mark.parametrize(("rows", "blocks"), [(16384, 2), (64, 1)])
def test_blocks_of_several_tiles_leave_registers_for_each_other(rows: int, blocks: int) -> None:
    layout = WeightLayout(4, "float16", 32, 5376, (rows,))
    operator = int8_linear(ONE, layout, "float32", prologue=Norm(eps=1e-6))
    source = cuda_source(make_kernel(operator, target_spec("cuda")))
    assert f"__launch_bounds__(256, {blocks})" in source
