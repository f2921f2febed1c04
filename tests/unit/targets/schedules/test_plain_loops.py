"""The rule of the CPU: the loops in front of a reduction in parallel, and the same results."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from gemma4_compile.operators.tir import function, store
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.schedules.plain_loops import ParallelSpatialLoops
from tests.unit.targets.schedules.functions import elementwise

CPU = target_spec("cpu").tvm_target()


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = ParallelSpatialLoops().apply(func, CPU, False)
    assert schedule is not None
    return schedule.mod["main"]


def summed() -> tirx.PrimFunc:
    """Sums over the last of three axes: (4, 8, 16) -> (4, 8)."""
    x = te.placeholder((4, 8, 16), "float32", name="x")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((4, 8), lambda i, j: te.sum(x[i, j, k], axis=k), name="y")
    return te.create_prim_func([x, y]).without_attr("global_symbol")


def test_the_outer_loop_runs_in_parallel() -> None:
    assert "T.parallel(128)" in scheduled(elementwise()).script()


def test_spatial_loops_are_one_and_the_reduction_stays_in_order() -> None:
    script = scheduled(summed()).script()
    assert script.count("T.parallel") == 1
    assert "T.parallel(32)" in script
    assert "range(16)" in script


def test_results_are_those_of_the_definition() -> None:
    x = np.random.default_rng(0).normal(size=(4, 8, 16)).astype(np.float32)
    y = tvm.runtime.empty((4, 8), "float32")
    module = tvm.IRModule({"main": scheduled(summed()).with_attr("global_symbol", "main")})
    tvm.compile(module, target="llvm")["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), x.sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["webgpu", "metal"])
def test_gpus_are_left_to_other_rules(target: str) -> None:
    spec = target_spec(target).tvm_target()
    assert ParallelSpatialLoops().apply(elementwise(), spec, False) is None


def test_loops_that_are_no_blocks_stay_as_they_are() -> None:
    with function(scheduled=False) as build:
        y = build.arg("y", (2,), "float32")
        store(y, tirx.const(1.0, "float32"), 0)
    schedule = ParallelSpatialLoops().apply(build.result, CPU, False)
    assert schedule is None or "T.parallel" not in schedule.mod["main"].script()
