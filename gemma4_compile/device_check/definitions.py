"""Compiles an operator's definition for the CPU, as a package does, and runs it on arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.s_tir import dlight

from gemma4_compile.operators.base import Operator
from gemma4_compile.targets import cpu
from gemma4_compile.targets.schedules import schedule_rules

Array = npt.NDArray[Any]


@lru_cache(maxsize=256)
def _compiled(operator: Operator) -> Any:
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
    tensors: list[Any] = [arg if isinstance(arg, int) else tvm.runtime.tensor(arg) for arg in args]
    _compiled(operator)(*tensors)
    for arg, tensor in zip(args, tensors, strict=True):
        if not isinstance(arg, int):
            np.copyto(arg, tensor.numpy())
