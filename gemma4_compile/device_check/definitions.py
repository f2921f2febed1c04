"""Compiles an operator's definition for the CPU and runs it on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir import dlight
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.operators.base import Operator
from gemma4_compile.passes.lowering import tir_pipeline
from gemma4_compile.targets import cpu
from gemma4_compile.targets.schedules.plain_loops import ParallelSpatialLoops
from gemma4_compile.types import Array

_LITTLE_BYTES = 512 << 10
"""Less is computed sooner than LLVM has improved the code for it."""
_AS_IT_IS, _IMPROVED = 0, 2  # LLVM's levels


@lru_cache(maxsize=256)
def _compiled(operator: Operator, level: int) -> tvm_ffi.Function:
    func = operator.prim_func().with_attr("global_symbol", "kernel")
    module = tvm.IRModule({"kernel": func})
    options = {**cpu.DEFAULT.tvm_target().export(), "opt-level": level}
    with tvm.target.Target(options) as target:
        scheduled = dlight.ApplyDefaultSchedule(ParallelSpatialLoops())(module)
        pipeline = tir_pipeline(cpu.DEFAULT)
        return tvm.compile(scheduled, target=target, tir_pipeline=pipeline)["kernel"]


def run(operator: Operator, *args: Array | int) -> None:
    """Call the definition; arrays are passed in place, so results are read from the last of them.

    Parameters
    ----------
    args : the arguments of `operator.definition()`, in its order

    Raises
    ------
    ValueError
        If an array is not what the definition takes.
    """
    _check(operator, args)
    is_little = sum(arg.nbytes for arg in args if not isinstance(arg, int)) < _LITTLE_BYTES
    tensors: list[tvm.runtime.Tensor | int] = [
        arg if isinstance(arg, int) else tvm.runtime.tensor(arg) for arg in args
    ]
    _compiled(operator, _AS_IT_IS if is_little else _IMPROVED)(*tensors)
    for arg, tensor in zip(args, tensors, strict=True):
        if not isinstance(arg, int) and not isinstance(tensor, int):
            np.copyto(arg, tensor.numpy())


def _check(operator: Operator, args: Sequence[Array | int]) -> None:
    """Raise ValueError for arrays of another type or shape: the code does not check them."""
    params = operator.prim_func().params
    pairs = [
        (param, arg)
        for param, arg in zip(params, args, strict=True)
        if is_buffer_var(param) and not isinstance(arg, int)
    ]
    sizes: dict[tirx.Var, int] = {}
    for param, arg in pairs:
        if len(param.shape) != arg.ndim:
            raise ValueError(f"{param.name}: expected {len(param.shape)} axes, found {arg.ndim}")
        for extent, size in zip(param.shape, arg.shape, strict=True):
            if isinstance(extent, tirx.Var):
                sizes.setdefault(extent, size)
    analyzer = sym.Analyzer()
    for var, size in sizes.items():
        analyzer.bind(var, tirx.IntImm(str(var.ty.dtype), size))
    for param, arg in pairs:
        shape = tuple(int(analyzer.simplify(extent)) for extent in param.shape)
        if (shape, str(param.dtype)) != (arg.shape, str(arg.dtype)):
            raise ValueError(
                f"{param.name}: expected {param.dtype} of shape {shape}, "
                f"found {arg.dtype} of shape {arg.shape}"
            )
