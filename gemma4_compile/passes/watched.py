"""What `--dump-ir=each` sees: the module after every pass that runs in a block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tvm
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext, PassInfo

AfterPass = Callable[[str, tvm.IRModule], None]
"""Is given a pass's name and the module that it has made."""
_GROUPS = ("sequential", "KernelByKernel", "LowerKernels", "_pipeline")
"""Passes that run others, each of which is seen by itself."""


@pass_instrument
class _Watch:
    """Reports every pass that TVM runs."""

    def __init__(self, after: AfterPass) -> None:
        self._after = after

    def run_after_pass(self, mod: tvm.IRModule, info: PassInfo) -> None:
        """Report one."""
        if info.name not in _GROUPS:
            self._after(info.name, mod)


@contextlib.contextmanager
def watched(after: AfterPass | None) -> Iterator[None]:
    """Report every pass of TVM's and ours that runs in the block; with None, nothing."""
    if after is None:
        yield
        return
    with PassContext(instruments=[_Watch(after)]):
        yield
