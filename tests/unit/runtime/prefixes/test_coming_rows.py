"""Rows that a device copies by itself, which nobody waits for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.prefixes import copy_memory
from gemma4_compile.runtime.prefixes.kept import (
    KeptPrefixes,
    SequencePrefixes,
    kept_prefixes,
)
from tests.unit.runtime.prefixes.test_kept import BUDGET, Counting, Engine


class CopyingDevice:
    """It knows how often it was waited for, and what it copies is there after that."""

    kind = replace(NATIVE_KINDS["cpu"], reads_host=True)

    def __init__(self) -> None:
        self.waits = 0
        self.coming: list[Callable[[], None]] = []

    def wait(self) -> None:
        self.waits += 1
        for copy in self.coming:
            copy()
        self.coming.clear()


class Coming(Counting):
    """Of what is read the rows are those of that moment, and come when the device is waited for."""

    def __init__(self, keys: Iterable[int], device: CopyingDevice) -> None:
        super().__init__(keys)
        self._device = device

    def read_rows(self, entry: int, first: int, array: Any) -> None:
        rows = np.empty_like(array)
        super().read_rows(entry, first, rows)
        self._device.coming.append(partial(np.copyto, array, rows))


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


def with_a_reply(
    monkeypatch: pytest.MonkeyPatch, device: CopyingDevice, held: list[int]
) -> tuple[KeptPrefixes, SequencePrefixes, Coming]:
    """A sequence that holds a prompt of 200 tokens, which is kept, and a reply."""
    monkeypatch.setattr(copy_memory, "memory_for_copies", lambda _, count: np.zeros(count, "u1"))
    sequence = Coming(held[:200], device)
    engine = Engine(sequence)
    engine.device = cast("Device", device)
    prefixes = kept_prefixes(engine, BUDGET)
    assert prefixes is not None
    own = prefixes.of(engine)
    own.keep(held[:200], 0, None)
    sequence.add(held[200:])
    return prefixes, own, sequence


def ask_again(prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes) -> None:
    """Go on with the next prompt to its first token."""
    own.keep(list(range(200)), 0, None)


def ask_another(prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes) -> None:
    """Have another sequence look for a prompt."""
    other.restore(Prompt([5, 6, 7]), 0, 0)


def interrupt(prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes) -> None:
    """Look for the prompt after one that broke off: of that nothing is told."""
    own.restore(Prompt([5, 6, 7]), 0, 0)


def interrupt_and_leave(
    prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes
) -> None:
    """Leave what another sequence holds."""
    other.leave(list(range(3)), 0, None, later=True)


def look(prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes) -> None:
    """Ask which slot has most of a prompt."""
    prefixes.reach(Prompt([5, 6, 7]))


def close(prefixes: KeptPrefixes, own: SequencePrefixes, other: SequencePrefixes) -> None:
    """End."""
    prefixes.close()


@pytest.mark.parametrize(
    "settle", [ask_again, ask_another, interrupt, interrupt_and_leave, look, close]
)
def test_a_reply_that_a_prompt_replaces_is_kept_after_its_first_token(
    monkeypatch: pytest.MonkeyPatch,
    settle: Callable[[KeptPrefixes, SequencePrefixes, SequencePrefixes], None],
) -> None:
    """Nobody waits for its rows before, and they are those of before the prompt."""
    device, held = CopyingDevice(), [*range(200), *range(900, 990)]
    prefixes, own, sequence = with_a_reply(monkeypatch, device, held)
    other = prefixes.of(Engine(Counting()))
    device.waits = 0
    own.leave(held, 200, None, later=True)
    restored = own.restore(Prompt([*range(200), 7]), 0, 200)
    assert restored is not None
    assert restored.length == 200
    sequence.add([7, 8])
    assert (device.waits, prefixes.counts().saved) == (0, 1)
    settle(prefixes, own, other)
    assert device.waits >= 1
    assert prefixes.counts().saved == 2
    device.coming.clear()  # what came is all that will
    fresh = Counting()
    found = prefixes.of(Engine(fresh)).restore(Prompt([*held, 7]), 0, 0)
    assert found is not None
    fresh.check(held)


def test_a_prompt_that_parts_within_the_reply_that_it_replaces_has_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rings reach no further back than the slot's; those of the prompt before it go on."""
    device, held, parting = CopyingDevice(), [*range(200), *range(900, 938)], 205
    _, own, sequence = with_a_reply(monkeypatch, device, held)
    assert not sequence.pop(len(held) - parting)
    own.leave(held, parting, None, later=True)
    restored = own.restore(Prompt([*held[:parting], 7]), 0, parting)
    assert restored is not None
    assert restored.length == parting
    sequence.check(held[:parting])


def test_a_device_that_has_failed_does_not_keep_files_from_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_memory, "memory_for_copies", lambda _, count: np.zeros(count, "u1"))
    device = CopyingDevice()
    engine = Engine(Coming(range(90), device))
    engine.device = cast("Device", device)
    prefixes, ended = kept_prefixes(engine, BUDGET), list[str]()
    assert prefixes is not None
    prefixes.of(engine).leave(list(range(90)), 0, None, later=True)
    files = type("Files", (), {"close": lambda _: ended.append("files")})()
    monkeypatch.setattr(prefixes, "_files", files)
    device.coming = [partial(raise_, RuntimeError("an illegal address"))]
    prefixes.close()
    assert (ended, prefixes.counts().saved) == (["files"], 0)


def raise_(error: Exception) -> None:
    raise error
