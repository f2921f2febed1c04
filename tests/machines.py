"""Machines for executables that are not linked: without the C++ functions of a library."""

from __future__ import annotations

from functools import cache

import tvm
import tvm_ffi
from tvm import relax

from gemma4_compile import abi


@cache
def _register() -> None:
    """A check that lets all pass: tests/e2e/test_wrong_arguments.py has the library's own."""
    tvm_ffi.register_global_func(abi.CHECK_TENSORS, lambda *_: None)


def unlinked(executable: tvm.runtime.Executable) -> relax.VirtualMachine:
    """A machine on the CPU for what `generate` makes."""
    _register()
    return relax.VirtualMachine(executable, tvm.cpu())
