"""Functions that TVM compiles for the machine that converts weights."""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

_NAME = "kernel"


def compiled_once(make: Callable[..., tirx.PrimFunc]) -> Callable[..., Callable[..., None]]:
    """Compile what `make` returns for its arguments, at the first call with them."""
    compiling = threading.Lock()  # weights are converted in several threads

    @functools.cache
    def compiled(*arguments: Any) -> Callable[..., None]:
        kernel = make(*arguments).with_attr("global_symbol", _NAME)
        found: Callable[..., None] = tvm.compile(
            tvm.IRModule({_NAME: kernel}), target=host_target()
        )[_NAME]
        return found

    @functools.wraps(make)
    def once(*arguments: Any) -> Callable[..., None]:
        with compiling:
            return compiled(*arguments)

    return once


def host_target() -> Target:
    """The machine that runs it: x86 with AVX2, as our CPU libraries, if it has that."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return Target("llvm")
    newest = Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())})
    has_avx2 = tvm.target.codegen.target_has_features("avx2", newest)
    return Target({"kind": "llvm", "mcpu": "x86-64-v3" if has_avx2 else "x86-64-v2"})
