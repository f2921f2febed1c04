"""Rows that a device copies by itself, which nobody waits for."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.prefixes import copy_memory
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from tests.unit.runtime.prefixes.test_kept import BUDGET, Counting, Engine


class CopyingDevice:
    """It knows how often it was waited for."""

    kind = replace(NATIVE_KINDS["cpu"], reads_host=True)

    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


def test_what_a_device_copies_by_itself_is_kept_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that nobody waits for still reads what the budget drives out meanwhile."""
    monkeypatch.setattr(copy_memory, "memory_for_copies", lambda _, count: np.empty(count, "u1"))
    device, keys, sequence = CopyingDevice(), list(range(300)), Counting(range(300))
    engine, prompt = Engine(sequence), Prompt([*range(300), 7])
    engine.device = cast("Device", device)
    prefixes = kept_prefixes(engine, BUDGET)
    assert prefixes is not None
    own = prefixes.of(engine)
    own.keep(keys, 0, None)
    found = prefixes.memory.find(prompt.keys())
    assert found is not None
    state = weakref.ref(found.state)
    del found
    device.waits = 0
    assert own.restore(prompt, 0, 0) is not None
    prefixes.memory.clear()
    assert state() is not None
    sequence.add([7])
    assert device.waits == 0
    own.keep(prompt.keys(), 0, None)  # a token of the reply is there
    assert state() is None
    for before in (0, 1):  # the second time for the copies of the first, which nothing ended
        device.waits = 0
        assert own.restore(Prompt([*prompt.ids, 8]), 0, 0) is not None
        assert device.waits == before
