"""Add the `_metadata` function: the parameters, and how to call the library."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from gemma4_compile import abi


@module_pass(opt_level=0, name="AttachMetadata")
class AttachMetadata:
    """Before: a module without ``_metadata``. After: the same, and ``_metadata() -> "<json>"``."""

    def __init__(self, metadata: str) -> None:
        self.metadata = metadata

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Add the function."""
        builder = relax.BlockBuilder(mod)
        with builder.function(abi.METADATA, params=[]):
            builder.emit_func_output(tvm.ir.StringImm(self.metadata))
        return builder.get()
