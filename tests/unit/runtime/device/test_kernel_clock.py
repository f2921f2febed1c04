"""Clocks of kernels: each gives the seconds of every launch once, in their order."""

from __future__ import annotations

from itertools import accumulate, chain, repeat

import pytest

from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.kernel_clock import HostClock, WaitingClock, kernel_clock


def test_a_host_is_timed_by_its_clock() -> None:
    times = iter([0.0, 1.0, 5.0, 5.5])
    clock = HostClock(lambda: next(times))
    for _ in range(2):
        clock.start()
        clock.stop()
    assert clock.take() == [1.0, 0.5]
    assert clock.take() == []
    assert isinstance(kernel_clock(Device("cpu")), HostClock)


def test_a_device_without_events_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(Device, "wait", lambda device: waits.append(device.name))
    idle, steps = 0.25, chain(repeat(0.25, 39), [10.0, 3.0, 10.0, 0.125])
    times = accumulate(steps, initial=0.0)
    clock = WaitingClock(Device("metal"), lambda: next(times))
    before = len(waits)
    for _ in range(2):
        clock.start()
        clock.stop()
    assert waits[before:] == ["metal", "metal"]
    assert clock.take() == [3.0 - idle, 0.0], "what a wait for nothing takes is not the kernel's"


def test_every_device_that_a_process_opens_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "wait", lambda device: None)
    assert isinstance(kernel_clock(Device("metal")), WaitingClock)
    # CUDA's own library is not to be found in this test
    monkeypatch.setattr("gemma4_compile.runtime.device.cuda_runtime.LIBRARY", "libnone.so")
    assert isinstance(kernel_clock(Device("cuda")), WaitingClock)
