"""Rows of kept prefixes on their way to a GPU, on a stream beside that of the forward.

A layer waits for its own rows when it is launched, so that the copies of later layers run beside
the kernels of earlier ones. Everything else that is done with sequences waits for all of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.cuda_runtime import DEFAULT_STREAM, CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.types import Array

SWITCH = "GEMMA4_ROW_STREAM"
_BESIDE_OTHERS = 1  # cudaStreamNonBlocking
_TO_DEVICE = 1  # cudaMemcpyHostToDevice
_COPY = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_log = logging.getLogger("gemma4_compile.cuda")


@dataclass(frozen=True)
class Rows:
    """Rows of one entry of a state: (2, n, heads, head_dim), keys first, from a position on."""

    entry: int
    first: int
    array: Array


@dataclass(frozen=True)
class _Copy:
    """Bytes that are to come to an address of the device.

    Attributes
    ----------
    array : has them, and is held until they were asked for
    """

    sequence: int
    entry: int
    target: int
    source: int
    nbytes: int
    array: Array


class RowStream:
    """Copies to the device that are asked for when a forward begins.

    Only then: the forward's own small uploads would wait behind them, for a GPU makes the copies of
    one direction in the order in which it was given them.

    Attributes
    ----------
    is_coming : rows are due or on their way, and the default stream has not waited for them
    """

    def __init__(self, library: NativeLibrary, handle: tvm_ffi.Object, entries: int) -> None:
        """Make a stream; ArtifactError for a library of before, CudaError if CUDA has none."""
        self._stream: ctypes.c_void_p | None = None
        self._events: list[ctypes.c_void_p] = []
        self._places = library.linked_function(abi.KV_ROW_PLACES)
        self._expect = library.linked_function(abi.KV_EXPECT_ROWS)
        self._handle, self._cuda = handle, CudaRuntime()
        self._wait_address = self._cuda.address("cudaStreamWaitEvent")
        # Of its own types: a long prefix has a hundred copies, for which a forward waits.
        make = ctypes.CFUNCTYPE(ctypes.c_int, *_COPY)
        self._copy = make(self._cuda.address("cudaMemcpyAsync"))
        flags = ctypes.c_uint(_BESIDE_OTHERS)
        self._stream = self._cuda.make("cudaStreamCreateWithFlags", flags)
        while len(self._events) < entries + 1:  # and one for all
            self._events.append(self._cuda.make_event())
        self._due = deque[_Copy]()
        self._coming = set[int]()  # entries whose event is behind their rows
        self.is_coming = False

    def send(self, sequence: int, pieces: Iterable[Rows]) -> None:
        """Have rows come to a sequence without tokens before the forward that asks for them.

        Those of an entry in this order. ValueError, and none comes, where they have no place.
        Who sends them keeps their memory until the device was waited for after that forward.
        """
        found = list[_Copy]()
        for entry, own in groupby(sorted(pieces, key=attrgetter("entry")), attrgetter("entry")):
            for piece in own:
                found += self._copies(sequence, entry, piece)
        self._due += found
        self.is_coming = self.is_coming or bool(found)

    def _copies(self, sequence: int, entry: int, piece: Rows) -> Iterable[_Copy]:
        array = piece.array
        assert array[0].flags.c_contiguous, "rows lie one after another"
        begin = array.__array_interface__["data"][0]
        sources = begin, begin + array.strides[0]
        count = array.shape[1]
        places = self._places(self._handle, sequence, entry, piece.first, count)
        numbers, done = [int(number) for number in places], 0
        for at in range(0, len(numbers), 3):
            *targets, nbytes = numbers[at : at + 3]
            for target, source in zip(targets, sources, strict=True):
                yield _Copy(sequence, entry, target, source + done, nbytes, array)
            done += nbytes
        assert done == array[0].nbytes, "rows of the state's own dtype"

    def drop(self, sequence: int) -> None:
        """Ask for no more rows of a sequence that goes: another one may get its slot."""
        self._due = deque(one for one in self._due if one.sequence != sequence)

    def join(self) -> None:
        """Have whatever the device is given next come after all rows."""
        if self.is_coming:
            self._ask()
            self._wait_for_all()

    def begin(self) -> None:
        """Ask for all rows, for which the forward that has begun waits, layer by layer."""
        self._ask()
        events = [0] * (len(self._events) - 1)
        for entry in self._coming:
            events[entry] = self._events[entry].value or 0
        self._expect(self._handle, tvm_ffi.Shape(tuple(events)), self._wait_address)

    def _ask(self) -> None:
        """Ask for the copies that are due; what is left after an error is due still."""
        if not self._due:
            return
        cuda, everything = self._cuda, self._events[-1]
        cuda.call("cudaEventRecord", everything, DEFAULT_STREAM)
        cuda.call("cudaStreamWaitEvent", self._stream, everything, ctypes.c_uint(0))
        try:
            self._copy_due()
        except BaseException:
            # Copies of an entry whose event is not behind them: what comes next is after those.
            with suppress(CudaError):
                self._wait_for_all()
            self.is_coming = bool(self._due)
            raise

    def _copy_due(self) -> None:
        cuda, copy, stream, due = self._cuda, self._copy, self._stream, self._due
        while due:
            one = due[0]
            code = copy(one.target, one.source, one.nbytes, _TO_DEVICE, stream)
            if code:
                cuda.check("cudaMemcpyAsync", code)
            due.popleft()
            if not due or due[0].entry != one.entry:
                cuda.call("cudaEventRecord", self._events[one.entry], stream)
                self._coming.add(one.entry)

    def _wait_for_all(self) -> None:
        everything = self._events[-1]
        self._cuda.call("cudaEventRecord", everything, self._stream)
        self._cuda.call("cudaStreamWaitEvent", DEFAULT_STREAM, everything, ctypes.c_uint(0))
        self._coming.clear()
        self.is_coming = False

    def __del__(self) -> None:
        if self._stream:
            self._cuda.code("cudaStreamSynchronize", self._stream)
            self._cuda.code("cudaStreamDestroy", self._stream)
        for event in self._events:
            self._cuda.code("cudaEventDestroy", event)


def row_stream(
    library: NativeLibrary, device: Device, handle: tvm_ffi.Object, entries: int
) -> RowStream | None:
    """A stream for rows, where a device copies by itself; None where there is none."""
    if not device.kind.reads_host or os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return RowStream(library, handle, entries)
    except ArtifactError:
        return None  # of before: its forwards wait for all rows
    except CudaError as error:
        _log.warning("forwards wait for all kept rows: %s", error)
        return None
