"""Calls for several sequences, each size of which is a CUDA graph where there are some."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic

import tvm_ffi

from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.call_graphs import CallGraphs, CallsT, Tensors
from gemma4_compile.runtime.library.native_library import NativeLibrary

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
        self.calls = functions(library)
        self._graphs: CallGraphs[CallsT] | None = None
        if graphs:
            recorded, watch = library.recorded()
            try:
                self._graphs = CallGraphs(self.calls, functions(recorded), watch, device)
            except CudaError as error:
                _log.warning("no CUDA graphs of %s: %s", what, error)

    def run(self, name: str, call: Callable[..., Tensors], *tensors: tvm_ffi.Tensor) -> Tensors:
        """What a call of the functions gives on tensors; a name is always of the same call."""
        if self._graphs is None:
            return call(self.calls, *tensors)
        return self._graphs.run(name, call, *tensors)

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return 0 if self._graphs is None else self._graphs.kernels
