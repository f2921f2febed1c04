"""Memory for copies that is ready before it is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.device_kinds import CPU, DeviceKind
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.prefixes import copy_memory
from gemma4_compile.runtime.prefixes.copy_memory import CopyMemory
from gemma4_compile.runtime.prefixes.kept import READY_BYTES, KeptPrefixes


class Locking(Device):
    """A device whose copies want memory that takes long to make."""

    @property
    def kind(self) -> DeviceKind:
        return replace(CPU, reads_host=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was made so far."""
    sizes: list[int] = []

    def make(device: Device, nbytes: int) -> npt.NDArray[np.uint8]:
        del device
        sizes.append(nbytes)
        return np.empty(nbytes, np.uint8)

    monkeypatch.setattr(copy_memory, "memory_for_copies", make)
    return sizes


def test_what_is_ready_is_taken_once_and_made_again(made: list[int]) -> None:
    memory = CopyMemory(Locking("cpu"))
    memory.prepare((100, 60))
    assert made == [100, 60]
    memory.prepare((100, 60))
    assert made == [100, 60], "it is there still"
    one, other = memory.take(60), memory.take(51)
    assert (len(one), len(other)) == (60, 100)
    assert not np.shares_memory(one, other)
    assert made == [100, 60]
    assert len(memory.take(60)) == 60
    assert made == [100, 60, 60]
    memory.prepare((100, 60))
    assert made == [100, 60, 60, 100, 60]


def test_little_does_not_keep_much(made: list[int]) -> None:
    memory = CopyMemory(Locking("cpu"))
    memory.prepare((100,))
    for nbytes in (0, 50, 101):
        assert len(memory.take(nbytes)) == nbytes
    assert made == [100, 0, 50, 101]
    memory.prepare((300,))
    assert (len(memory.take(100)), len(memory.take(300))) == (100, 300)
    assert made == [100, 0, 50, 101, 300, 100], "what was ready before is not kept"


def test_other_devices_have_nothing_ready(made: list[int]) -> None:
    memory = CopyMemory(Device("cpu"))
    memory.prepare((100,))
    assert made == []
    assert len(memory.take(100)) == 100
    assert made == [100]


@pytest.mark.parametrize(
    ("heads", "budget", "ready"),
    [
        (1, 1 << 30, (2 * 2 * 575 * 256 + 128, 2 * 2 * 1024 * 512 + 128)),
        (1, 1 << 20, ()),  # no room for it
        (48, 1 << 30, (2 * 2 * 575 * 256 * 48 + 128, READY_BYTES - 2 * 2 * 575 * 256 * 48 + 128)),
        (64, 1 << 30, ()),  # it would take long
    ],
)
def test_what_a_reply_needs_is_ready_where_that_is_little(
    made: list[int], heads: int, budget: int, ready: tuple[int, ...]
) -> None:
    entries = (RowEntry(0, 8192, 0, heads, 512), RowEntry(0, 1535, 512, heads, 256))
    kept = KeptPrefixes(entries, "float16", Locking("cpu"), 512, budget)
    kept.prepare()
    assert tuple(made) == ready
