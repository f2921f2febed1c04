"""CUDA graphs: what a call launches is recorded once, and launched again as one graph.

A decode step is some hundred launches, all of which are the same from step to step: the token, its
position and the rotary values lie in fixed memory. The host takes longer to issue them one by one
than a GPU takes to run them.

A graph holds addresses, so everything that they point to has to stay: weights and state belong to
the engine, and the intermediate results of the recorded call are kept out of TVM's pool for as long
as the graph is. They are allocated by a second virtual machine of the same library, which asks for
every allocation here (`graph_storage.py`); the one that runs everything else has no such cost.
"""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.runtime.device.cuda_runtime import DEFAULT_STREAM, CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.graph_storage import Allocate, GraphStorage, Lent
from gemma4_compile.runtime.device.programmatic_launch import begin_early

SWITCH = "GEMMA4_CUDA_GRAPHS"
"""Environment variable; 0 leaves graphs off."""

_RELAXED = 2  # cudaStreamCaptureModeRelaxed: an allocation does not end the capture
_KERNEL, _COPY = 0, 1  # cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy
_BUILTIN = "vm.builtin."
# What the virtual machine does on the host alone. Anything else, such as a copy, might be done once
# while recording and never again.
_HOST_ONLY = frozenset(
    _BUILTIN + name
    for name in (
        "alloc_shape_heap",
        "alloc_storage",
        "alloc_tensor",
        "check_prim_value_info",
        "check_shape_info",
        "check_tensor_info",
        "check_tuple_info",
        "copy",  # of a reference
        "kill_object",
        "make_shape",
        "make_tuple",
        "match_prim_value",
        "match_shape",
        "null_value",
        "reshape",
        "tuple_getitem",
        "tuple_reset_item",
    )
)

_log = logging.getLogger("gemma4_compile.cuda")

Output: TypeAlias = "tvm_ffi.Tensor | tuple[tvm_ffi.Tensor, ...]"
OutputT = TypeVar("OutputT", bound=Output)


class NotRecordableError(Exception):
    """A call cannot become a graph; the message gives the reason."""


class Copier(Protocol):
    """An instrument that copies what kernels were given, on the stream that they run on.

    Attributes
    ----------
    copies : that it has made
    """

    copies: int

    def __call__(
        self, function: object, name: str, before: bool, result: object, /, *arguments: object
    ) -> int:
        """Take note of one call of the machine."""
        ...


class Watch:
    """Instrument of a virtual machine, and what it allocates by while a call is recorded.

    It must not refer to the machine, which refers to it: such a cycle would never be freed.
    """

    def __init__(
        self,
        copier: Copier | None = None,
        storage: GraphStorage | None = None,
        *,
        programmatic: bool = False,
    ) -> None:
        """Take what else is told of each call, whose copies may be in a graph.

        Parameters
        ----------
        storage : of all calls that the engine records; by default of this machine's alone
        programmatic : whether the machine's kernels may begin before the last one has ended
        """
        self.programmatic = programmatic
        self._storage = GraphStorage() if storage is None else storage
        self._lent: Lent | None = None
        self._unknown = ""
        self._copier = copier

    @property
    def copies(self) -> int:
        """That the other instrument has made so far."""
        return 0 if self._copier is None else self._copier.copies

    @contextmanager
    def recording(self, own: Collection[int] = ()) -> Iterator[Lent]:
        """Lend memory to a call; NotRecordableError at the end if something else was done.

        `own` : numbers of its allocations that no other call may have
        """
        self._unknown = ""
        with self._storage.lent(own) as self._lent:
            try:
                yield self._lent
            finally:
                self._lent = None
        if self._unknown:
            raise NotRecordableError(f"the library calls `{self._unknown}`")

    def allocate(self, allocate: Allocate, *arguments: Any) -> object:
        """As TVM's function, for the machine; what a recorded call is lent stays with the graph."""
        if self._lent is None:
            return allocate(*arguments)
        return self._lent.take(allocate, *arguments)

    def __call__(
        self, function: object, name: str, before: bool, result: object, *arguments: object
    ) -> int:
        """Take note of one call of the machine, which is made in any case."""
        if self._copier is not None:
            self._copier(function, name, before, result, *arguments)
        if self._lent is None:
            return 0
        if before and name.startswith(_BUILTIN) and name not in _HOST_ONLY:
            self._unknown = name
        return 0


class Graph(Generic[OutputT]):
    """Recorded launches, ready to run; they are freed with this object.

    Attributes
    ----------
    output : what the recorded call returned, tensors; every launch writes them anew
    kernels : launches in it
    """

    def __init__(
        self, cuda: CudaRuntime, executable: ctypes.c_void_p, output: OutputT, kernels: int
    ) -> None:
        self._cuda = cuda
        self._executable = executable
        self._kept: Sequence[object] = ()
        self.output = output
        self.kernels = kernels

    def keep(self, objects: Sequence[object]) -> None:
        """Let objects live as long as the graph."""
        self._kept = objects

    def launch(self) -> None:
        """Run it after all work that the device was given before."""
        self._cuda.launch_graph(self._executable, DEFAULT_STREAM)

    def __del__(self) -> None:
        self._cuda.code("cudaGraphExecDestroy", self._executable)


def record(
    cuda: CudaRuntime, device: Device, watch: Watch, action: Callable[[], OutputT]
) -> Graph[OutputT]:
    """Record what a call launches; nothing of it runs.

    Parameters
    ----------
    watch : of the virtual machine that the call uses
    action : the call; it has been made before, so that every kernel is loaded

    Raises
    ------
    NotRecordableError
        If something else than launches would be recorded, or the driver refuses.
    """
    own: set[int] = set()  # which allocations have results is known once there are some
    while True:
        graph, lent = _record(cuda, device, watch, action, own)
        places = lent.places(_tensors(graph.output))
        if places <= own:
            graph.keep(lent.taken)
            return graph
        own |= places


def _record(
    cuda: CudaRuntime,
    device: Device,
    watch: Watch,
    action: Callable[[], OutputT],
    own: Collection[int],
) -> tuple[Graph[OutputT], Lent]:
    """As `record`, with memory whose allocations `own` are of this call alone."""
    stream = graph = None
    try:
        stream = cuda.make("cudaStreamCreateWithFlags", 1)  # does not wait for the default stream
        copied = watch.copies
        with watch.recording(own) as lent:
            cuda.call("cudaStreamBeginCapture", stream, ctypes.c_int(_RELAXED))
            try:
                with _without_collection(), device.stream(stream.value or 0):
                    output = action()
            finally:
                graph = ctypes.c_void_p()
                ended = cuda.code("cudaStreamEndCapture", stream, ctypes.byref(graph))
            cuda.check("cudaStreamEndCapture", ended)
        kernels = _count_kernels(cuda, graph, watch.copies - copied)
        if watch.programmatic:
            begin_early(cuda, graph, lambda node: _type(cuda, node) == _KERNEL)
        executable = cuda.make("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
    except NotRecordableError:
        raise
    except Exception as error:  # the call has worked without a graph, so it will again
        raise NotRecordableError((str(error) or type(error).__name__).splitlines()[0]) from error
    finally:
        if graph:
            cuda.code("cudaGraphDestroy", graph)
        if stream:
            cuda.code("cudaStreamDestroy", stream)
    return Graph(cuda, executable, output, kernels), lent


@contextmanager
def _without_collection() -> Iterator[None]:
    """Put garbage collection off: it could free device memory, which waits for the device."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _count_kernels(cuda: CudaRuntime, graph: ctypes.c_void_p, copies: int) -> int:
    """The kernels of a graph; NotRecordableError if more is in it than these and so many copies."""
    count = ctypes.c_size_t()
    cuda.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    cuda.call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
    kernels = 0
    for node in nodes:
        kind = _type(cuda, ctypes.c_void_p(node))
        if kind == _COPY and copies:
            copies -= 1
        elif kind == _KERNEL:
            kernels += 1
        else:
            raise NotRecordableError(f"it holds something else than kernels (type {kind})")
    if not kernels:
        raise NotRecordableError("nothing was launched")
    return kernels


def _type(cuda: CudaRuntime, node: ctypes.c_void_p) -> int:
    kind = ctypes.c_int()
    cuda.call("cudaGraphNodeGetType", node, ctypes.byref(kind))
    return kind.value


class Replayed(Generic[OutputT]):
    """A call on fixed tensors that is recorded when it is first made, and replayed from then on.

    Called with other tensors, it is recorded anew. Where a graph cannot be had, or does not give
    what the plain call gives, byte for byte, every call is a plain one.
    """

    def __init__(
        self,
        name: str,
        plain: Callable[..., OutputT],
        watched: Callable[..., OutputT],
        watch: Watch,
        cuda: CudaRuntime,
        device: Device,
    ) -> None:
        """Take a call in two forms.

        Parameters
        ----------
        name : of the call, for the log
        plain : the call, from tensors to a tensor or several
        watched : the same on the virtual machine that `watch` sees
        """
        self._name = name
        self._plain = plain
        self._watched = watched
        self._watch = watch
        self._cuda = cuda
        self._device = device
        self._graph: Graph[OutputT] | None = None
        self._inputs: Sequence[tvm_ffi.Tensor] = ()
        self._refused = False

    @property
    def output(self) -> OutputT | None:
        """Result of a replayed call; None where there is no graph."""
        return None if self._graph is None else self._graph.output

    @property
    def kernels(self) -> int:
        """Launches of the graph; 0 where there is none."""
        return 0 if self._graph is None else self._graph.kernels

    def __call__(self, *inputs: tvm_ffi.Tensor) -> OutputT:
        """The call's result; a replayed one is right until the next call."""
        if self._graph is not None:
            if all(a is b for a, b in zip(inputs, self._inputs, strict=True)):
                try:
                    self._graph.launch()
                    return self._graph.output
                except CudaError as error:
                    self._refuse(str(error))
            self._graph = None
        output = self._plain(*inputs)
        if not self._refused:
            self._record(inputs, output)
        return output

    def _record(self, inputs: Sequence[tvm_ffi.Tensor], expected: OutputT) -> None:
        """Record the call that has just been made, and run it once more to compare."""
        try:
            graph = record(self._cuda, self._device, self._watch, lambda: self._watched(*inputs))
            graph.launch()
            if not _equal(self._device, graph.output, expected):
                raise NotRecordableError("it gives other values than the plain launches")
        except (NotRecordableError, CudaError) as error:
            self._refuse(str(error))
            return
        self._graph, self._inputs = graph, inputs

    def _refuse(self, reason: str) -> None:
        self._graph, self._refused = None, True
        _log.warning(
            "no CUDA graph for the %s, whose launches the host issues one by one: %s",
            self._name,
            reason,
        )


def _equal(device: Device, found: Output, expected: Output) -> bool:
    """Return whether tensors hold the same bytes."""
    pairs = zip(_tensors(found), _tensors(expected), strict=True)
    return all(np.array_equal(_bytes(device, a), _bytes(device, b)) for a, b in pairs)


def _tensors(output: Output) -> tuple[tvm_ffi.Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def _bytes(device: Device, tensor: tvm_ffi.Tensor) -> npt.NDArray[np.uint8]:
    return np.ravel(device.read(tensor)).view(np.uint8)
