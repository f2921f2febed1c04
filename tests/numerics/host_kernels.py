"""Kernels of the CPU target on arrays, as `definitions.run` runs definitions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import dlight

from gemma4_compile.device_check.comparison import allowed_error, example_arguments
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.passes.lowering import tir_pipeline
from gemma4_compile.targets.schedules.plain_loops import HostKernels
from tests.numerics.definitions import CPU, Array, run


@lru_cache(maxsize=64)
def _compiled(operator: Operator) -> tvm_ffi.Function:
    module = tvm.IRModule({"kernel": operator.prim_func()})
    with tvm.target.Target({**CPU.tvm_target().export(), "opt-level": 0}) as target:
        kernel = dlight.ApplyDefaultSchedule(HostKernels())(module)["kernel"]
        assert "tirx.is_scheduled" in kernel.attrs, "there is a kernel for CPUs"
        named = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
        return tvm.compile(named, target=target, tir_pipeline=tir_pipeline(CPU))["kernel"]


def run_host(operator: Operator, *args: Array | int) -> None:
    """Call the kernel; arrays are passed in place."""
    tensors = [arg if isinstance(arg, int) else tvm.runtime.tensor(arg) for arg in args]
    _compiled(operator)(*tensors)
    for arg, tensor in zip(args, tensors, strict=True):
        if not isinstance(arg, int) and not isinstance(tensor, int):
            np.copyto(arg, tensor.numpy())


def check_host_kernel(operator: Operator, sizes: Sizes, seed: int = 0) -> Sequence[Array | int]:
    """Assert that a kernel is as near to its definition as any; return its arguments after it."""
    args = example_arguments(operator, np.random.default_rng(seed), sizes)
    expected, found = (
        [arg if isinstance(arg, int) else arg.copy() for arg in args] for _ in range(2)
    )
    run(operator, *expected)
    run_host(operator, *found)
    changed = 0
    for param, before, right, own in zip(
        operator.prim_func().params, args, expected, found, strict=True
    ):
        if isinstance(before, int) or isinstance(right, int) or isinstance(own, int):
            continue
        changed += not np.array_equal(before, right)
        error = np.abs(own.astype(np.float64) - right.astype(np.float64))
        assert np.all(error <= allowed_error(operator, right, param.name)), param.name
    assert changed, "the definition makes something"
    return found
