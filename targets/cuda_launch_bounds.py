"""Registers of CUDA's kernels: how many blocks of each a multiprocessor is to hold at least."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile.targets.kernels.common.blocks import MIN_BLOCKS


@module_pass(opt_level=0, name="BoundRegisters")
class BoundRegisters:
    """Let a kernel have the registers that it asks for, unless it says itself how many.

    Before: ``__launch_bounds__(256)``. After: ``__launch_bounds__(256, 1)``. Without the second
    number ptxas saves registers for blocks that a small grid never has: it moves loads that are
    asked for early down to where their values are needed, and a step waits for memory each time.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Mark the kernels, which TVM has made functions of their own."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and MIN_BLOCKS not in func.attrs:
                result.update_func(var, func.with_attr(MIN_BLOCKS, 1))
        return result
