"""Limits of this process on Windows, where a job object holds them (`kernel32`).

A job can be put into another since Windows 8, so every limit has one of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Protocol

EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_PROCESS_TIME, _PROCESS_MEMORY = 0x2, 0x100
_TICKS = 10**7  # of 100 ns in a second


class BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION; its sizes are Windows', whatever `long` is here."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("smallest_working_set", ctypes.c_size_t),
        ("largest_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("basic", BasicLimits),
        ("input_output", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("peak_paged_pool", ctypes.c_size_t),
        ("paged_pool", ctypes.c_size_t),
        ("peak_other_pool", ctypes.c_size_t),
        ("other_pool", ctypes.c_size_t),
        ("committed", ctypes.c_size_t),
        ("peak_committed", ctypes.c_size_t),
    )


class MachineMemory(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("percent_used", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


Function = Callable[..., int]
"""A function of a DLL. Handles fit into an `int` of C, also where pointers are longer."""


class Kernel32(Protocol):
    """What is used of kernel32.dll: its functions return 0 when they fail."""

    @property
    def CreateJobObjectW(self) -> Function:
        """Make a job; its handle."""

    @property
    def SetInformationJobObject(self) -> Function:
        """Set a job's limits."""

    @property
    def AssignProcessToJobObject(self) -> Function:
        """Put a process into a job."""

    @property
    def GetCurrentProcess(self) -> Function:
        """Return what stands for this process."""

    @property
    def K32GetProcessMemoryInfo(self) -> Function:
        """Fill counters."""


class MemoryStatus(Protocol):
    """What is used of kernel32.dll for the machine's memory."""

    @property
    def GlobalMemoryStatusEx(self) -> Function:
        """Fill what the machine has."""


def machine_memory_bytes(kernel32: MemoryStatus) -> int:
    """Memory of the machine; OSError if Windows does not say."""
    found = MachineMemory(size=ctypes.sizeof(MachineMemory))
    _check(kernel32.GlobalMemoryStatusEx(ctypes.byref(found)), "GlobalMemoryStatusEx")
    return int(found.physical)


def memory_counters(kernel32: Kernel32) -> Counters:
    """What this process has of memory; OSError if Windows does not say."""
    counters = Counters(size=ctypes.sizeof(Counters))
    found = kernel32.K32GetProcessMemoryInfo(
        _this_process(kernel32),
        ctypes.byref(counters),
        ctypes.c_uint32(ctypes.sizeof(counters)),
    )
    _check(found, "K32GetProcessMemoryInfo")
    return counters


def limit_memory(kernel32: Kernel32, more_bytes: int) -> None:
    """Let this process commit so much memory more than it has; OSError if that cannot be."""
    limits = ExtendedLimits(process_memory=memory_counters(kernel32).committed + more_bytes)
    limits.basic.flags = _PROCESS_MEMORY
    _put_into_job(kernel32, limits)


def limit_cpu(kernel32: Kernel32, seconds: int) -> None:
    """Let Windows end this process when it has computed for so long; OSError if that cannot be."""
    limits = ExtendedLimits()
    limits.basic.process_time, limits.basic.flags = seconds * _TICKS, _PROCESS_TIME
    _put_into_job(kernel32, limits)


def _put_into_job(kernel32: Kernel32, limits: ExtendedLimits) -> None:
    job = kernel32.CreateJobObjectW(None, None)
    _check(job, "CreateJobObjectW")
    handle = ctypes.c_void_p(job)
    size = ctypes.c_uint32(ctypes.sizeof(limits))
    done = kernel32.SetInformationJobObject(
        handle, ctypes.c_int(EXTENDED_LIMITS), ctypes.byref(limits), size
    )
    _check(done, "SetInformationJobObject")
    done = kernel32.AssignProcessToJobObject(handle, _this_process(kernel32))
    _check(done, "AssignProcessToJobObject")  # the handle stays open: it is this process's


def _this_process(kernel32: Kernel32) -> ctypes.c_void_p:
    return ctypes.c_void_p(kernel32.GetCurrentProcess())


def _check(result: object, name: str) -> None:
    if not result:
        raise OSError(errno.EINVAL, f"{name}: {os.strerror(errno.EINVAL)}")
