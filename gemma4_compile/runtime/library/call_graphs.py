"""Calls of a library by name, each of which becomes a CUDA graph when it is first made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import tvm_ffi

from gemma4_compile.runtime.device.cuda_graph import Replayed, Watch
from gemma4_compile.runtime.device.cuda_runtime import CudaRuntime
from gemma4_compile.runtime.device.device import Device

CallsT = TypeVar("CallsT")
Tensors: TypeAlias = "tuple[tvm_ffi.Tensor, ...]"


class CallGraphs(Generic[CallsT]):
    """Graphs of calls of some functions, which are there in two forms."""

    def __init__(self, plain: CallsT, watched: CallsT, watch: Watch, device: Device) -> None:
        """Take the functions; CudaError if CUDA's runtime is not to be had.

        Parameters
        ----------
        watched : the same on the virtual machine that `watch` sees
        """
        self._plain, self._watched = plain, watched
        self._watch, self._device = watch, device
        self._cuda = CudaRuntime()
        self._made: dict[str, Replayed[Tensors]] = {}

    def run(self, name: str, call: Callable[..., Tensors], *tensors: tvm_ffi.Tensor) -> Tensors:
        """What a call of the functions gives on tensors; a name is always of the same call."""
        if name not in self._made:
            forms = partial(call, self._plain), partial(call, self._watched)
            self._made[name] = Replayed(name, *forms, self._watch, self._cuda, self._device)
        return self._made[name](*tensors)

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return max((graph.kernels for graph in self._made.values()), default=0)
