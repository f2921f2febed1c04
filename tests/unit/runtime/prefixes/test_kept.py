"""When beginnings are kept and which are found, on sequences that only count."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.inputs import Picture
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.beginnings import KeptCounts
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.prefixes.kept import KeptPrefixes, Spacing, kept_prefixes

CHUNK = 8
ENTRIES = (RowEntry(0, 1000, 0, 1, 2), RowEntry(0, 40, 16, 1, 2), RowEntry(0, 40, 1, 1, 2))
BUDGET = 10**6


class Counting:
    """A sequence whose rows are the numbers of their positions."""

    def __init__(self, length: int = 0) -> None:
        self.length, self.shortest = length, max(0, length - 25)
        self.read: list[tuple[int, int, int]] = []

    def row_entries(self) -> tuple[tuple[RowEntry, ...], str]:
        return ENTRIES, "float32"

    def read_rows(self, entry: int, first: int, count: int) -> Any:
        self.read.append((entry, first, count))
        rows = np.arange(first, first + count, dtype=np.float32)
        return np.broadcast_to(rows[None, :, None, None], (2, count, 1, 2)).copy()

    def clear(self) -> None:
        self.length, self.written = 0, dict[int, list[int]]()

    def write_rows(self, entry: int, first: int, rows: Any) -> None:
        assert self.length == 0
        assert rows.shape[1] == len(set(rows[0, :, 0, 0])) > 0
        assert rows[0, 0, 0, 0] == first
        self.written.setdefault(entry, []).extend(int(row) for row in rows[1, :, 0, 1])

    def resume(self, length: int, shortest: int) -> None:
        assert self.written[0] == list(range(length))
        assert self.written[1] == list(range(max(0, shortest - 15), length))
        self.length, self.shortest = length, shortest

    def pop(self, count: int) -> bool:
        self.length -= count
        return self.length >= self.shortest


class NoDevice:
    def wait(self) -> None:
        """All is there at once."""


class Engine:
    def __init__(self, sequence: Counting, *, whole: bool = False) -> None:
        self.sequence = cast("Sequence", sequence)
        self.device, self.prefill_chunk = cast("Device", NoDevice()), CHUNK
        self.media = MediaSettings(whole_images=whole)


def kept(budget: int = BUDGET, *, whole: bool = False) -> KeptPrefixes:
    made = kept_prefixes(Engine(Counting(), whole=whole), budget)
    assert made is not None
    return made


def hold(prefixes: KeptPrefixes, keys: list[int], rest: int = 0) -> Counting:
    """A sequence that holds these, of which it is told."""
    sequence = Counting(len(keys))
    prefixes.of(Engine(sequence)).keep(keys, rest, None)
    return sequence


def found(prefixes: KeptPrefixes, prompt: Prompt, shared: int = 0) -> int:
    """How many tokens of a prompt a sequence holds then."""
    sequence = Counting()
    restored = prefixes.of(Engine(sequence)).restore(prompt, shared)
    if restored is not None:
        assert sequence.length == restored.length
    return sequence.length


def test_rows_that_are_kept_already_are_not_read_again() -> None:
    prefixes = kept()
    keys = list(range(60))
    assert hold(prefixes, keys[:20]).read == [(0, 0, 20), (1, 0, 20)]
    assert hold(prefixes, keys[:50]).read == [(0, 20, 30), (1, 10, 40)]
    assert hold(prefixes, keys[:50]).read == []
    assert hold(prefixes, keys[:53]).read == []  # three more tokens are not worth it
    assert found(prefixes, Prompt(keys)) == 50
    assert found(prefixes, Prompt(keys[:47])) == 46
    assert found(prefixes, Prompt(keys), shared=48) == 0
    memory = prefixes.memory
    expected = KeptCounts(2, memory.nbytes, BUDGET, saved=2, hits=2, restored_tokens=50 + 46)
    assert prefixes.counts() == expected


def test_chunks_are_kept_at_distances_that_grow() -> None:
    prefixes = kept()
    keys = list(range(800))
    for end in range(CHUNK, 800, CHUNK):
        hold(prefixes, keys[:end], 10_000)
    lengths = sorted(len(x) for x in _states(prefixes))
    assert lengths[:4] == [32, 64, 96, 128]
    assert all(b - a >= max(32, b // 4) for a, b in pairwise(lengths))
    assert lengths[-1] > 500


def test_a_state_that_goes_is_kept_where_much_of_it_goes() -> None:
    prefixes = kept()
    keys = list(range(50))
    own = prefixes.of(Engine(Counting(50)))
    own.leave(keys, 50 - CHUNK + 1, None)
    assert len(prefixes.memory) == 0
    own.leave(keys, 10, None)
    assert found(prefixes, Prompt([*keys, 1])) == 50


def test_pictures_are_told_apart_by_what_they_show() -> None:
    prefixes = kept()
    same, other = _picture(1), _picture(2)
    hold(prefixes, _with(same, 30).keys())
    assert found(prefixes, _with(same, 40)) == 30
    assert found(prefixes, _with(other, 40)) == 10


@pytest.mark.parametrize(("whole", "shared"), [(False, 15), (True, 10)])
def test_a_picture_that_must_be_whole_is_not_cut(whole: bool, shared: int) -> None:
    prefixes = kept(whole=whole)
    ids = _with(_picture(1), 30).ids
    hold(prefixes, _with(_picture(1), 30).keys())
    assert found(prefixes, Prompt([*ids[:10], *range(500, 520)])) == 10
    assert found(prefixes, _with(_picture(1), 16)) == shared


def test_rings_that_take_much_of_the_budget_are_kept_less_often() -> None:
    near, far = Spacing.of(512, 2**20, 2**31), Spacing.of(512, 2**29, 2**31)
    assert near == Spacing(256, 2048, 0.25, 512)
    assert far == Spacing(256, 8192, 1.0, 512)
    assert near.is_due(10_000, 256, 0, 0)
    assert not near.is_due(10_000, 2499, 5000, 0)
    assert near.is_due(10_000, 2500, 5000, 0)


def test_the_last_chunk_before_a_question_is_kept() -> None:
    spacing = Spacing.of(512, 2**20, 2**31)
    due = [end for end in range(512, 20_000, 512) if spacing.is_due(end, 2048, 20_000 - end, 0)]
    assert [end for end in due if end > 8192] == [19_456]


def test_where_prompts_part_is_kept_when_the_second_one_comes() -> None:
    """The third one goes on from a place within a chunk of where they part."""
    prefixes = kept()
    one, second = list(range(400)), [*range(300), *range(1000, 1100)]
    hold(prefixes, one)
    sequence = Counting()
    own = prefixes.of(Engine(sequence))
    assert own.restore(Prompt(second), 0) is None  # it went too far
    for end in range(CHUNK, 401, CHUNK):
        sequence.length, sequence.shortest = end, max(0, end - 25)
        own.keep(second[:end], 400 - end, None)
    assert found(prefixes, Prompt([*range(300), *range(2000, 2100)])) == 296


def test_what_the_budget_has_no_room_for_is_not_copied() -> None:
    """A token takes 16 bytes of the full layers and 16 of the rings, of 79 tokens at most."""
    prefixes = kept(16 * 300 + 16 * 79)
    keys = list(range(1000, 1400))
    assert hold(prefixes, keys[:100]).read == [(0, 0, 100), (1, 60, 40)]
    assert hold(prefixes, keys[:301]).read == []
    assert found(prefixes, Prompt(keys)) == 100  # it did not go for what has no room
    assert not prefixes.has_room(301)
    assert prefixes.has_room(300)


def test_a_reply_goes_on_where_the_host_has_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    class Full(Counting):
        def read_rows(self, entry: int, first: int, count: int) -> Any:
            raise MemoryError

    prefixes = kept()
    own = prefixes.of(Engine(Full(40)))
    own.keep(list(range(40)), 0, None)
    own.leave(list(range(40)), 0, None)
    assert len(prefixes.memory) == prefixes.saved_states == 0
    assert caplog.text.count("the host has no memory for a prefix of 40 tokens") == 2


def test_nothing_is_kept_without_a_budget_or_by_a_library_that_cannot_copy() -> None:
    class Old(Counting):
        def row_entries(self) -> tuple[tuple[RowEntry, ...], str]:
            raise ArtifactError("the model library has no function `gemma4_kv_read_rows`")

    assert kept_prefixes(Engine(Counting()), 0) is None
    assert kept_prefixes(Engine(Old()), BUDGET) is None


def _states(prefixes: KeptPrefixes) -> list[range]:
    keys = list(range(800))
    held = {x.length for n in range(1, 801) if (x := prefixes.memory.at(keys[:n]))}
    return [range(length) for length in held]


def _picture(value: int) -> Picture:
    return cast("Picture", _Digest(value))


class _Digest:
    def __init__(self, value: int) -> None:
        self.digest = bytes([value] * 32)


def _with(picture: Picture, length: int) -> Prompt:
    """Ten tokens of text, twelve rows of a picture, and text."""
    ids = [*range(100, 110), *[9] * 12, *range(200, 200 + length)][:length]
    return Prompt(ids, (Run(10, min(12, length - 10), picture),))


@pytest.mark.parametrize("rest", [0, 500])
def test_what_is_kept_twice_is_kept_once(rest: int) -> None:
    prefixes = kept()
    for _ in range(3):
        hold(prefixes, list(range(40)), rest)
    assert len(prefixes.memory) == prefixes.saved_states == 1
