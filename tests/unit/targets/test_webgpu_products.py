"""Float16 multiply-adds of WGSL: a product and a sum, where those of float32 stay one function."""

from __future__ import annotations

import pytest

from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.common.tile_loaders import put, vector


@pytest.mark.parametrize(("dtype", "is_split"), [("float16", True), ("float32", False)])
def test_multiply_adds_of_halves_are_split(dtype: str, is_split: bool) -> None:
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (256,), dtype) for name in "xy")
        with launch(64, 1) as (_, _, thread):
            put(y, thread, vector(x, thread) * vector(x, thread) + vector(y, thread))
    source = kernel_source(build.result, "kernel", target_spec("webgpu"))
    assert ("fma(" not in source) == is_split, source
    assert "vec4<f" in source


def test_products_of_single_halves_stay_as_they_are() -> None:
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (64,), "float16") for name in "xy")
        with launch(64, 1) as (_, _, thread):
            store(y, x[thread] * x[thread] + y[thread], thread)
    assert "fma(" in kernel_source(build.result, "kernel", target_spec("webgpu"))
