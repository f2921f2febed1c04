"""Job objects of a made-up kernel32: the bytes that Windows would read."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gemma4_compile.system import jobs

HAS = 50 << 20


class Kernel32:
    """Remembers what a process was put under."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.limits: list[jobs.ExtendedLimits] = []
        self.assigned: list[tuple[int | None, int | None]] = []

    def CreateJobObjectW(self, *_: object) -> int:
        return 0 if self.failing == "CreateJobObjectW" else 0x104

    def GetCurrentProcess(self) -> int:
        return -1

    def SetInformationJobObject(
        self, job: ctypes.c_void_p, kind: ctypes.c_int, content: Any, size: ctypes.c_uint32
    ) -> int:
        assert kind.value == jobs.EXTENDED_LIMITS
        assert size.value == ctypes.sizeof(jobs.ExtendedLimits)
        self.limits.append(content._obj)
        return self.failing != "SetInformationJobObject"

    def AssignProcessToJobObject(self, job: ctypes.c_void_p, process: ctypes.c_void_p) -> int:
        self.assigned.append((job.value, process.value))
        return self.failing != "AssignProcessToJobObject"

    def K32GetProcessMemoryInfo(self, process: object, counters: Any, size: object) -> int:
        counters._obj.committed, counters._obj.peak_working_set = HAS, 2 * HAS
        return self.failing != "K32GetProcessMemoryInfo"


def test_structures_have_the_sizes_of_64_bit_windows() -> None:
    """As the Windows SDK's headers give them."""
    assert ctypes.sizeof(jobs.BasicLimits) == 64
    assert ctypes.sizeof(jobs.ExtendedLimits) == 144
    assert ctypes.sizeof(jobs.Counters) == 72
    assert ctypes.sizeof(jobs.MachineMemory) == 64
    assert jobs.ExtendedLimits.process_memory.offset == 112


def test_memory_is_limited_from_what_the_process_has() -> None:
    kernel32 = Kernel32()
    jobs.limit_memory(kernel32, 1 << 30)
    (limits,) = kernel32.limits
    assert limits.basic.flags == 0x100
    assert limits.process_memory == HAS + (1 << 30)
    assert kernel32.assigned == [(0x104, 2**64 - 1)]


def test_seconds_of_computing_are_limited() -> None:
    kernel32 = Kernel32()
    jobs.limit_cpu(kernel32, 3)
    (limits,) = kernel32.limits
    assert (limits.basic.flags, limits.basic.process_time) == (0x2, 30_000_000)
    assert len(kernel32.assigned) == 1


def test_the_peak_is_read() -> None:
    assert jobs.memory_counters(Kernel32()).peak_working_set == 2 * HAS


@pytest.mark.parametrize(
    "name",
    [
        "CreateJobObjectW",
        "SetInformationJobObject",
        "AssignProcessToJobObject",
        "K32GetProcessMemoryInfo",
    ],
)
def test_a_call_that_fails_is_an_error(name: str) -> None:
    with pytest.raises(OSError, match=name):
        jobs.limit_memory(Kernel32(name), 1)


@pytest.mark.parametrize("works", [True, False])
def test_the_machines_memory_is_asked_for(works: bool) -> None:
    class Machine:
        def GlobalMemoryStatusEx(self, found: Any) -> int:
            assert found._obj.size == 64
            found._obj.physical = 16 << 30
            return works

    if works:
        assert jobs.machine_memory_bytes(Machine()) == 16 << 30
    else:
        with pytest.raises(OSError, match="GlobalMemoryStatusEx"):
            jobs.machine_memory_bytes(Machine())
