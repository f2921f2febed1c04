"""Compiles an operator's definition for the CPU, as a package does, and runs it on arrays."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import dlight

from gemma4_compile.operators.base import Operator
from gemma4_compile.targets import cpu
from gemma4_compile.targets.schedules import schedule_rules
from gemma4_compile.types import Array


@lru_cache(maxsize=256)
def _compiled(operator: Operator) -> tvm_ffi.Function:
    func = operator.prim_func().with_attr("global_symbol", "kernel")
    module = tvm.IRModule({"kernel": func})
    with cpu.DEFAULT.tvm_target() as target:
        scheduled = dlight.ApplyDefaultSchedule(*schedule_rules(cpu.DEFAULT))(module)
        return tvm.compile(scheduled, target=target)["kernel"]


def run(operator: Operator, *args: Array | int) -> None:
    """Call the definition; arrays are passed in place, so results are read from the last of them.

    Parameters
    ----------
    args : the arguments of `operator.definition()`, in its order
    """
    tensors: list[tvm.runtime.Tensor | int] = [
        arg if isinstance(arg, int) else tvm.runtime.tensor(arg) for arg in args
    ]
    _compiled(operator)(*tensors)
    for arg, tensor in zip(args, tensors, strict=True):
        if not isinstance(arg, int) and not isinstance(tensor, int):
            np.copyto(arg, tensor.numpy())
