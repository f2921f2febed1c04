"""Kernels name what they use twice, and nothing that they do not use."""

import re

import pytest
import tvm
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

from gemma4_compile.operators.tir import bind, function, i32, store
from gemma4_compile.operators.types import Index
from gemma4_compile.passes.lowering import device_pipeline
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch


def kernel(rows: Index, blocks: Index) -> tirx.PrimFunc:
    """``y[b, t] = 2 x[p] where p = (b * b + t * t) % 4096``; one more name is not used."""
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (rows, 64), "float32") for name in "xy")
        with launch(64, blocks) as (block, _, thread):
            place = bind(tirx.floormod(block * block + thread * thread, 4096))
            row, column = tirx.floordiv(place, 64), tirx.floormod(place, 64)
            bind(place + 3)
            store(y, x[row, column] + x[row, column], block, thread)
    return build.result


def device_text(func: tirx.PrimFunc) -> str:
    """What the code generator gets, as text."""
    lowering, _, finalize_device = device_pipeline()
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    module = lowering(tirx.transform.BindTarget(target_spec("webgpu").tvm_target())(module))
    _, device = split_host_device_mods(module)
    (kernels,) = device.values()
    (lowered,) = finalize_device()(kernels).functions.values()
    return str(lowered.script())


N = tirx.Var("n", "int64")


@pytest.mark.parametrize(("rows", "blocks"), [(64, 64), (N, i32(N))])
def test_every_name_is_used_and_no_product_is_computed_twice(rows: Index, blocks: Index) -> None:
    text = device_text(kernel(rows, blocks))

    names = re.findall(r"^\s*(\w+): T\.let\[", text, re.MULTILINE)
    assert names
    assert all(len(re.findall(rf"\b{name}\b", text)) > 1 for name in names)
    assert text.count("threadIdx_x * threadIdx_x") == 1
