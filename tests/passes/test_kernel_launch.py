"""Launches are read from the functions that code is generated from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm.s_tir import dlight

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.passes.kernel_launch import KernelLaunch, kernel_launches, single_launches
from gemma4_compile.targets import target_spec, webgpu
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.schedules import schedule_rules
from tests.cuda import few_rows

NORM = RmsNorm(rows=CHUNK, width=96, eps=1e-6, out_dtype="float32")
GATED = Linear(
    rows=CHUNK,
    layout=WeightLayout(4, "float32", 32, 64, (32,)),
    in_dtype="float32",
    epilogue=Epilogue.GELU_GATE.value,
    ple_width=96,
)


def scheduled(**operators: Operator) -> tvm.IRModule:
    module = tvm.IRModule({name: op.prim_func() for name, op in operators.items()})
    with webgpu.DEFAULT.tvm_target():
        return dlight.ApplyDefaultSchedule(*schedule_rules(webgpu.DEFAULT))(module)


def launch_of(operator: Operator) -> KernelLaunch:
    return single_launches(scheduled(kernel=operator), ["kernel"], webgpu.DEFAULT)["kernel"]


def test_bindings_are_in_the_order_of_their_names() -> None:
    launch = launch_of(NORM)
    assert launch.entry_point == "kernel_kernel"
    assert launch.bindings == ("w", "x", "y")


def test_the_grid_follows_the_scalars() -> None:
    launch = launch_of(NORM)
    assert launch.scalars == ("n",)
    assert launch.blocks({"n": 7}) == (7, 1, 1)
    assert launch.blocks({"n": 19}) == (19, 1, 1)


def test_a_grid_that_has_a_name_in_the_kernel_is_written_out() -> None:
    attention = PatchAttention(2, 16, 3, "float16", "float16")
    module = tvm.IRModule({"kernel": make_kernel(attention, webgpu.H200_MATRICES)})
    launch = single_launches(module, ["kernel"], webgpu.H200_MATRICES)["kernel"]
    assert launch.blocks({"n": 19}) == (2, 3, 1), "heads, and 171 patches by 64"


def test_threads_are_those_of_the_block() -> None:
    assert [int(extent) for extent in launch_of(NORM).threads] == [64, 1, 1]


def test_a_layer_is_a_scalar_of_its_own() -> None:
    launch = launch_of(GATED)
    assert set(launch.scalars) == {"n", "layer"}
    rows = {n: launch.blocks({"n": n, "layer": 1})[1] for n in (1, 19, 33)}
    assert rows[1] == rows[19] == 1
    assert rows[33] > 1


def test_names_that_begin_alike_are_kept_apart() -> None:
    module = scheduled(norm=NORM, norm1=RmsNorm(CHUNK, 64, 1e-6, "float16"))
    launches = single_launches(module, ["norm", "norm1"], webgpu.DEFAULT)
    assert launches["norm"].entry_point == "norm_kernel"
    assert launches["norm1"].entry_point == "norm1_kernel"
    assert launches["norm"].text != launches["norm1"].text


def test_a_function_may_choose_among_kernels() -> None:
    spec = target_spec("cuda")
    layout = replace(few_rows.OPERATOR.layout, split_rows=(87_424,))
    large = replace(few_rows.OPERATOR, layout=layout)
    kernels = {"small": few_rows.OPERATOR, "large": large}
    module = tvm.IRModule({name: make_kernel(each, spec) for name, each in kernels.items()})
    launches = kernel_launches(module, ["small", "large"], spec)
    assert [len(launches[name]) for name in ("small", "large")] == [1, 2]
    with pytest.raises(LoweringError, match=r"kernel `large` is 2 launches"):
        single_launches(module, ["large"], spec)


def test_a_function_that_is_no_single_kernel_is_refused() -> None:
    operator = PrefillAttention(CHUNK, 1, 1, 32, None, "float32", None)
    module = tvm.IRModule({"plain": operator.prim_func()})
    with pytest.raises(LoweringError, match=r"kernel `plain` is 0 launches"):
        single_launches(module, ["plain"], webgpu.DEFAULT)
