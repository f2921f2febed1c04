"""How long each kernel takes on a device: by the host's clock, by events, or by waiting for it."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Protocol

from gemma4_compile.runtime.device.cuda_runtime import DEFAULT_STREAM, CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device

_IDLE_WAITS = 20


class KernelClock(Protocol):
    """Times launches one after the other.

    Attributes
    ----------
    how : in words, for the people who read the times
    """

    how: str

    def start(self) -> None:
        """Begin, before a launch."""

    def stop(self) -> None:
        """End, after it."""

    def take(self) -> list[float]:
        """Seconds of each launch since the last call, in their order; waits for the device."""


class HostClock:
    """Of a device that has done its work when a call returns."""

    how = "by this computer's clock"

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._began, self._seconds = now, 0.0, list[float]()

    def start(self) -> None:
        """Begin."""
        self._began = self._now()

    def stop(self) -> None:
        """End."""
        self._seconds.append(self._now() - self._began)

    def take(self) -> list[float]:
        """Seconds of each launch."""
        taken, self._seconds = self._seconds, []
        return taken


class WaitingClock:
    """Of a device without events for us: every launch is waited for.

    What a wait for nothing takes is subtracted; what a launch takes is part of its time.
    """

    how = "each waited for, so small ones take longer than in a chat"

    def __init__(self, device: Device, now: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._clock = device, HostClock(now)
        device.wait()
        for _ in range(_IDLE_WAITS):
            self._clock.start()
            device.wait()
            self._clock.stop()
        self._idle = statistics.median(self._clock.take())

    def start(self) -> None:
        """Begin; the device has nothing to do."""
        self._clock.start()

    def stop(self) -> None:
        """Wait, and end."""
        self._device.wait()
        self._clock.stop()

    def take(self) -> list[float]:
        """Seconds of each launch."""
        return [max(0.0, seconds - self._idle) for seconds in self._clock.take()]


class EventClock:
    """CUDA's: an event before and one after each launch, read when the device is done."""

    how = "by events on the GPU"

    def __init__(self, device: Device) -> None:
        """Prepare; CudaError if CUDA's runtime is not to be had."""
        self._device, self._cuda = device, CudaRuntime()
        self._events: list[ctypes.c_void_p] = []
        self._used = 0

    def start(self) -> None:
        """Record an event."""
        self._record()

    def stop(self) -> None:
        """Record another one."""
        self._record()

    def take(self) -> list[float]:
        """Seconds of each launch."""
        self._device.wait()
        found = []
        for first in range(0, self._used, 2):
            milliseconds = ctypes.c_float()
            pair = self._events[first], self._events[first + 1]
            self._cuda.call("cudaEventElapsedTime", ctypes.byref(milliseconds), *pair)
            found.append(milliseconds.value / 1e3)
        self._used = 0
        return found

    def _record(self) -> None:
        if self._used == len(self._events):
            self._events.append(self._cuda.make("cudaEventCreateWithFlags", ctypes.c_uint(0)))
        self._cuda.call("cudaEventRecord", self._events[self._used], DEFAULT_STREAM)
        self._used += 1

    def __del__(self) -> None:
        for event in getattr(self, "_events", ()):
            self._cuda.code("cudaEventDestroy", event)


def kernel_clock(device: Device) -> KernelClock:
    """The best clock that a device has."""
    if device.kind.is_host:
        return HostClock()
    if device.kind.has_events:
        with contextlib.suppress(CudaError):  # where CUDA's runtime is not the one we know
            return EventClock(device)
    return WaitingClock(device)
