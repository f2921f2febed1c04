"""When beginnings are kept and which are found, on sequences whose rows are their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.inputs import Picture
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.beginnings import KeptCounts
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.prefixes.kept import KeptPrefixes, kept_prefixes

CHUNK, END = 8, 7777
WINDOW, RING = 16, 40
ENTRIES = (RowEntry(0, 1000, 0, 1, 2), RowEntry(0, RING, WINDOW, 1, 2), RowEntry(0, RING, 1, 1, 2))
BUDGET = 10**6
PRIME = 65521  # keys of pictures are too large for a row


class Counting:
    """A sequence whose rows are its tokens, in a full layer and in a ring; its slot keeps them."""

    def __init__(self, keys: Iterable[int] = ()) -> None:
        self.full, self.ring, self.slot = [-1] * 1000, [-1] * RING, 0
        self.length = self.written = self.floor = 0
        self.read: list[tuple[int, int, int]] = []
        self.copied = 0
        self.add(keys)

    def add(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.full[self.length] = self.ring[self.length % RING] = key % PRIME
            self.length += 1
            self.written = max(self.written, self.length)

    @property
    def shortest(self) -> int:
        wrapped = self.written - RING + WINDOW - 1 if self.written > RING else 0
        return max(self.floor, wrapped)

    def check(self, keys: list[int]) -> None:
        """What the tokens that may be left attend to is there."""
        keys = [key % PRIME for key in keys]
        assert self.length == len(keys)
        assert self.full[: self.length] == keys
        for left in range(max(self.shortest, 1), self.length + 1):
            seen = range(max(0, left - WINDOW + 1), left)
            assert [self.ring[place % RING] for place in seen] == keys[seen.start : left]

    def row_entries(self) -> tuple[tuple[RowEntry, ...], str]:
        return ENTRIES, "float32"

    def read_rows(self, entry: int, first: int, array: Any) -> None:
        count = array.shape[1]
        self.read.append((entry, first, count))
        assert (max(0, self.written - RING) if entry else 0) <= first
        assert first + count <= self.length
        rows = self.ring if entry else self.full
        own = [rows[place % len(rows)] for place in range(first, first + count)]
        array[:] = np.array(own, np.float32)[None, :, None, None]

    def clear(self) -> None:
        self.length = self.written = self.floor = 0

    def send_rows(self, pieces: Iterable[Rows]) -> None:
        for one in pieces:
            self.write(one.entry, one.first, one.array)

    def join_rows(self) -> None:
        """All are there at once."""

    def write(self, entry: int, first: int, rows: Any) -> None:
        assert self.length == 0
        own = self.ring if entry else self.full
        assert 0 < rows.shape[1] <= len(own)
        self.copied += rows.nbytes
        for place, key in enumerate(rows[1, :, 0, 1], first):
            own[place % len(own)] = int(key)

    def resume(self, length: int, shortest: int) -> None:
        assert self.length == 0
        assert 0 <= shortest <= length
        self.length = self.written = length
        self.floor = shortest

    def pop(self, count: int) -> bool:
        if self.length - count < self.shortest:
            return False
        self.length -= count
        return True


class NoDevice:
    kind = NATIVE_KINDS["cpu"]

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
    sequence = Counting(keys)
    prefixes.of(Engine(sequence)).keep(keys, rest, None)
    return sequence


def read(prefixes: KeptPrefixes, sequence: Counting, prompt: Prompt) -> list[int]:
    """Have a sequence hold a prompt, and then tokens of a reply; the lengths of its chunks."""
    own, keys = prefixes.of(Engine(sequence)), prompt.keys()
    restored = own.restore(prompt, 0, 0)
    if restored is None:
        sequence.clear()
    chunks = []
    places = [*own.places(prompt, sequence.length, {END}), len(prompt)]
    while (begin := sequence.length) < len(prompt):
        following = (place for place in places if place > begin)
        end = min(begin + CHUNK, *following, len(prompt))
        chunks.append(end - begin)
        sequence.add(keys[begin:end])
        if end < len(prompt):
            own.keep(keys[:end], len(prompt) - end, None)
    sequence.add([-2])  # begun ahead
    own.keep(keys, 0, None)
    return chunks


def found(prefixes: KeptPrefixes, prompt: Prompt, shared: int = 0) -> int:
    """How many tokens of a prompt a sequence holds then."""
    sequence = Counting()
    reach = prefixes.reach(prompt)
    restored = prefixes.of(Engine(sequence)).restore(prompt, shared, shared)
    if restored is not None:
        assert restored.length == reach
        sequence.check(prompt.keys()[:reach])
    return sequence.length


def test_rows_that_are_kept_already_are_not_read_again() -> None:
    prefixes = kept()
    keys = list(range(60))
    assert hold(prefixes, keys[:20]).read == [(0, 0, 20), (1, 0, 20)]
    assert hold(prefixes, keys[:50]).read == [(0, 20, 30), (1, 10, 40)]  # all that the ring has
    assert hold(prefixes, keys[:50]).read == []
    assert hold(prefixes, keys[:53]).read == []  # three more tokens are not worth it
    assert found(prefixes, Prompt(keys)) == 50
    assert found(prefixes, Prompt(keys[:47])) == 46
    assert found(prefixes, Prompt(keys), shared=48) == 0
    memory = prefixes.memory
    counts = prefixes.counts()
    expected = KeptCounts(2, memory.nbytes, BUDGET, saved=2, hits=2, restored_tokens=50 + 46)
    assert replace(counts, copied_bytes=0) == expected
    row = 2 * 1 * 2 * 4  # keys and values, in float32
    assert counts.copied_bytes == row * 2 * (50 + 40)


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
    own = prefixes.of(Engine(Counting(range(50))))
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


def test_where_prompts_part_is_kept_when_the_second_one_comes() -> None:
    """A chunk is cut there, and the third one goes on from there to the token."""
    prefixes = kept()
    hold(prefixes, list(range(400)))
    second = Prompt([*range(301), *range(1000, 1100)])
    assert found(prefixes, second) == 0  # it went too far
    assert read(prefixes, Counting(), second) == [8] * 37 + [5] + [8] * 12 + [4]
    assert found(prefixes, Prompt([*range(301), *range(2000, 2100)])) == 301


def test_the_second_prompt_goes_on_where_it_parts_from_the_first_ones_end() -> None:
    """Rows of the end and of the chunk before it are together all that is attended to."""
    prefixes = kept()
    prompt = list(range(210))
    read(prefixes, Counting(), Prompt(prompt))
    kept_before = max(len(one) for one in _states(prefixes)[:-1])
    assert kept_before == 176
    for part in (160, 177, 185, 200, 209):
        assert found(prefixes, Prompt([*prompt[:part], *range(500, 530)])) == part
    second = Prompt([*prompt[:185], *range(500, 506)])
    sequence = Counting(range(700, 760))
    assert read(prefixes, sequence, second) == [6]
    # It is kept at the prompt's end, for it is in its last chunk: none was cut for it.
    assert found(prefixes, Prompt([*prompt[:185], 7, 8])) == 185
    assert [len(one) for one in _states(prefixes)][-2:] == [185, 210]


def test_a_place_is_not_kept_to_which_a_prefix_can_be_taken_back() -> None:
    """As of a conversation that goes on from a prompt's end but for a template's last words."""
    prefixes, keys = kept(), list(range(200))
    hold(prefixes, keys)
    for turn in range(3):
        keys = [*keys[:-4], *range(1000 * turn + 500, 1000 * turn + 530)]
        read(prefixes, Counting(), Prompt(keys))
    assert not {196, 222, 248} & {one.stop for one in _states(prefixes, keys)}
    assert found(prefixes, Prompt([*keys, 7])) > 250


def test_a_long_prompt_is_cut_where_its_first_turn_ends() -> None:
    prefixes = kept()
    turns = [*range(1, 83), END, *range(200, 303), END, *range(400, 430)]
    chunks = read(prefixes, Counting(), Prompt(turns))
    assert chunks[:13] == [*[8] * 10, 3, 8, 8]
    assert sum(chunks[:24]) == 187  # the end of the second one, before the last question
    assert found(prefixes, Prompt([*turns[:83], *range(500, 600)])) == 83
    assert found(prefixes, Prompt([*turns[:187], *range(500, 600)])) == 187
    short = Counting()
    assert read(kept(), short, Prompt(turns[:60])) == [8] * 7 + [4]
    assert read(kept(), Counting(), Prompt([*turns[:40], END, *turns[50:70]])) == [8] * 7 + [5]


prompts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 240), st.integers(1, 40)), min_size=2, max_size=6
)


@given(prompts, st.sampled_from([BUDGET, 7000]))
@settings(max_examples=40, deadline=None)
def test_a_sequence_holds_what_it_is_given(many: list[tuple[int, int, int]], budget: int) -> None:
    """Whatever came before, and with the rows that its slot still has."""
    prefixes = kept(budget)
    slots = [Counting(), Counting()]
    before: list[list[int]] = [[], []]
    for number, (shared, count, own) in enumerate(many):
        last = 9000 + 100 * number
        keys = [*range(1000 * shared, 1000 * shared + count), *range(last, last + own)]
        prompt, sequence, held = Prompt(keys), slots[number % 2], before[number % 2]
        pairs = zip(held, keys[:-1], strict=False)
        placed = next(
            (i for i, (a, b) in enumerate(pairs) if a != b), min(len(held), len(keys) - 1)
        )
        copied = sequence.copied
        restored = prefixes.of(Engine(sequence)).restore(prompt, 0, placed)
        if restored is not None:
            sequence.check(keys[: restored.length])
            assert restored.length >= prefixes.least_restored
        else:
            assert sequence.copied == copied
            sequence.clear()
        read(prefixes, sequence, prompt)
        sequence.check([*keys, -2])
        before[number % 2] = keys
    assert prefixes.counts().copied_bytes == sum(slot.copied for slot in slots)


def test_rows_that_the_slot_still_has_are_not_copied() -> None:
    prefixes = kept()
    keys = list(range(104))
    read(prefixes, Counting(), Prompt(keys))
    slot = Counting(keys)
    slot.add(range(500, 600))  # a reply, over which the ring forgets
    assert slot.shortest > 104
    restored = prefixes.of(Engine(slot)).restore(Prompt([*keys, 7]), 0, 104)
    assert restored is not None
    slot.check(keys)
    ring = 2 * 1 * 2 * 4 * (RING - 1)  # a token was begun ahead
    assert (slot.copied, prefixes.copied_bytes, prefixes.placed_tokens) == (ring, ring, 104)
    moved = Counting([*keys, *range(500, 600)])
    moved.clear = partial(_move, moved)  # type: ignore[method-assign]
    assert prefixes.of(Engine(moved)).restore(Prompt([*keys, 7]), 0, 104) is not None
    moved.check(keys)
    assert prefixes.placed_tokens == 104


def _move(sequence: Counting) -> None:
    """Another slot than before: nothing is there."""
    sequence.__init__()  # type: ignore[misc]
    sequence.slot = 1


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
        def read_rows(self, entry: int, first: int, array: Any) -> None:
            raise MemoryError

    prefixes = kept()
    own = prefixes.of(Engine(Full(range(40))))
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


def _states(prefixes: KeptPrefixes, keys: Iterable[int] = range(800)) -> list[range]:
    keys = list(keys)
    lengths = range(1, len(keys) + 1)
    held = {x.length for n in lengths if (x := prefixes.memory.at(keys[:n]))}
    return [range(length) for length in sorted(held)]


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
