"""Calls for several sequences, each size of which is a CUDA graph where there are some."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import tvm_ffi

from gemma4_compile.runtime.device.cuda_graph import Replayed, Watch
from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary

CallsT = TypeVar("CallsT")
Tensors: TypeAlias = "tuple[tvm_ffi.Tensor, ...]"

_log = logging.getLogger("gemma4_compile.cuda")


class JointGraphs(Generic[CallsT]):
    """Functions of a library, called as they are, or on CUDA as a graph for each size.

    What a row is of, the state has on the device (`KvState.begin`): a graph is right for any
    sequences. Graphs are made when they are first needed.

    Attributes
    ----------
    calls : the functions, as they are
    """

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        functions: Callable[[NativeLibrary], CallsT],
        what: str,
        *,
        graphs: bool,
    ) -> None:
        """Take the library's functions, ArtifactError where it has none: see `NativeLibrary.has`.

        `what` : they compute, for the log
        """
        self.calls, self._device = functions(library), device
        self._made: dict[str, Replayed[Tensors]] = {}
        self._recorder: tuple[CallsT, Watch, CudaRuntime] | None = None
        if graphs:
            watch = Watch(library.copier)
            try:
                self._recorder = functions(library.watched(watch)), watch, CudaRuntime()
            except CudaError as error:
                _log.warning("no CUDA graphs of %s: %s", what, error)

    def run(self, name: str, call: Callable[..., Tensors], *tensors: tvm_ffi.Tensor) -> Tensors:
        """What a call of the functions gives on tensors; a name is always of the same call."""
        if self._recorder is None:
            return call(self.calls, *tensors)
        if name not in self._made:
            watched, watch, cuda = self._recorder
            forms = partial(call, self.calls), partial(call, watched)
            self._made[name] = Replayed(name, *forms, watch, cuda, self._device)
        return self._made[name](*tensors)

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return max((graph.kernels for graph in self._made.values()), default=0)
