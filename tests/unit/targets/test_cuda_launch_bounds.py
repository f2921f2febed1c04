"""Kernels for CUDA have the registers that they ask for, or that are left by so many blocks."""

from __future__ import annotations

import re
from functools import partial

import pytest
from tvm import tirx

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.operators.tir import function, store
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.passes.kernel_sources import kernel_source
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


NORM = Norm(eps=1e-6)
NIBBLES = partial(WeightLayout, 4, "float16", 32)
MINIMA = partial(MinimaLayout, 4, "uint32", 32)


@pytest.mark.parametrize(
    ("operator", "blocks"),
    [
        (int8_linear(ONE, NIBBLES(5376, (16384,)), "float32", prologue=NORM), 2),
        (int8_linear(ONE, NIBBLES(12288, (1536,)), PACKED), 3),
        (int8_linear(ONE, NIBBLES(15360, (3840,)), PACKED), 2),
        (int8_linear(ONE, MINIMA(12288, (1536,)), PACKED), 3),
        (int8_linear(ONE, MINIMA(15360, (3840,)), PACKED), 1),
    ],
)
def test_what_is_read_ahead_leaves_registers_for_other_blocks(
    operator: Linear, blocks: int
) -> None:
    """And where it does not, reads are no early ones."""
    spec = target_spec("cuda")
    source = kernel_source(make_kernel(operator, spec), operator.name, spec)
    assert f"__launch_bounds__(256, {blocks})" in source
    early = re.search(r'launch_dependents;" : "\+l"\(q_scale0_ptr\)', source)
    assert (early is not None) == (blocks > 1)
