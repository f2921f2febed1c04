"""Compiles an operator's plain form for the CPU, as a package does, and runs it on arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.s_tir import dlight

from gemma4_compile.model_spec.operators.base import Operator
from gemma4_compile.targets import cpu
from gemma4_compile.targets.schedules import schedule_rules

Array = npt.NDArray[Any]

CPU = cpu.DEFAULT

# One operator on inputs of order 1: sums of at most 256 float32 terms, whose roundings add up like
# a random walk (sqrt(256) * 2**-24 = 1e-6 of the largest partial sum), and a few roundings after.
F32_RELATIVE = 4e-6
F32_ABSOLUTE = 4e-6
# A result stored in float16 is rounded once more: half a unit in the last of 11 bits.
ROUNDED = {
    "float32": {"rtol": F32_RELATIVE, "atol": F32_ABSOLUTE},
    "float16": {"rtol": F32_RELATIVE + 2.0**-11, "atol": F32_ABSOLUTE},
}


@lru_cache(maxsize=256)
def _compiled(operator: Operator) -> Any:
    func = operator.prim_func().with_attr("global_symbol", "kernel")
    module = tvm.IRModule({"kernel": func})
    with CPU.tvm_target() as target:
        scheduled = dlight.ApplyDefaultSchedule(*schedule_rules(CPU))(module)
        return tvm.compile(scheduled, target=target)["kernel"]


def run(operator: Operator, *args: Array | int) -> None:
    """Call the kernel; arrays are passed in place, so results are read from the last of them."""
    tensors = [arg if isinstance(arg, int) else tvm.runtime.tensor(arg) for arg in args]
    _compiled(operator)(*tensors)
    for arg, tensor in zip(args, tensors, strict=True):
        if not isinstance(arg, int):
            np.copyto(arg, tensor.numpy())


def values(seed: int, *shape: int, deviation: float = 1.0) -> npt.NDArray[np.float32]:
    """Normally distributed float32 values."""
    return np.random.default_rng(seed).normal(0.0, deviation, shape).astype(np.float32)
