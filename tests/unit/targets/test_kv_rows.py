"""Rows to the host's memory and back, `targets/native/kv_rows.cc`, in a library for the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from tests.unit.targets.checkpoints import (
    CHUNK,
    LAYERS,
    METADATA,
    ROWS,
    TOTAL,
    WINDOW,
    WRAPPED,
    Library,
    load,
    rows_of,
    write,
)
from tests.unit.targets.kv_library import NativeState

SLACK = 3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("rows"))


@dataclass(frozen=True)
class Kept:
    """Rows of a sequence: the first position of each entry, and a tensor."""

    length: int
    shortest: int
    rows: list[tuple[int, int, np.ndarray]]


def read(state: NativeState, slack: int = SLACK) -> Kept:
    length = state.length
    shortest = max(state(abi.KV_SHORTEST_LENGTH, 0), length - slack, 0)
    rows = []
    for entry, layer in enumerate(LAYERS):
        first = max(0, shortest - layer.window + 1) if layer.window else 0
        tensor = tvm.runtime.empty((2, length - first, layer.kv_heads, layer.head_dim), "float32")
        state(abi.KV_READ_ROWS, 0, entry, first, tensor)
        rows.append((entry, first, tensor.numpy()))
    return Kept(length, shortest, rows)


def resume(state: NativeState, kept: Kept) -> None:
    state(abi.KV_REMOVE_SEQUENCE, 0)
    state.add(0)
    for entry, first, rows in kept.rows:
        state(abi.KV_WRITE_ROWS, 0, entry, first, tvm.runtime.tensor(rows))
    state(abi.KV_RESUME, 0, kept.length, kept.shortest)


def seen(state: NativeState) -> list[np.ndarray]:
    """What the next token attends to, of full layers all."""
    found = rows_of(state)
    windows = [layer.window for layer in LAYERS for _ in range(2)]
    return [
        rows[-(window - 1) :] if window else rows
        for rows, window in zip(found, windows, strict=True)
    ]


def test_the_layout_names_what_each_entry_holds(library: Library) -> None:
    numbers = list(library.state()(abi.KV_ROW_LAYOUT))
    expected = [(0, x.rows or TOTAL, x.window, x.kv_heads, x.head_dim) for x in LAYERS]
    assert [tuple(numbers[i : i + 5]) for i in range(0, len(numbers), 5)] == expected


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, ROWS, ROWS + 1, WRAPPED, TOTAL])
def test_a_resumed_sequence_holds_what_the_next_token_attends_to(
    library: Library, length: int
) -> None:
    state, fresh = library.state(), library.state()
    write(state, length, np.random.default_rng(length))
    write(fresh, 50, np.random.default_rng(0))  # what is there is no part of it
    resume(fresh, read(state))
    assert fresh.length == length
    for expected, found in zip(seen(state), seen(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_tokens_are_taken_back_as_far_as_rows_were_kept(library: Library) -> None:
    state, fresh = library.state(), library.state()
    write(state, WRAPPED, np.random.default_rng(1))
    resume(fresh, read(state))
    with pytest.raises(ValueError, match=f"pop at most {SLACK}, or all {WRAPPED}"):
        fresh.pop(SLACK + 1)
    for one in (state, fresh):
        one.pop(SLACK)
    for expected, found in zip(seen(state), seen(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)
    again = library.state()
    resume(again, read(fresh))  # of a resumed one no more can be kept than it has
    assert again(abi.KV_SHORTEST_LENGTH, 0) == WRAPPED - SLACK


def test_what_is_added_afterwards_is_as_in_the_first(library: Library) -> None:
    state, fresh = library.state(), library.state()
    write(state, WRAPPED, np.random.default_rng(2))
    resume(fresh, read(state))
    for one in (state, fresh):
        write(one, WRAPPED + 9, np.random.default_rng(3))
        one.pop(CHUNK - 1)
    for expected, found in zip(seen(state), seen(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_fork_of_a_resumed_sequence_goes_no_further_back(library: Library) -> None:
    state = NativeState(library.module, total=TOTAL, chunk=CHUNK, max_sequences=2)
    state.add(0)
    write(state, WRAPPED, np.random.default_rng(4))
    resume(state, read(state))
    state(abi.KV_FORK_SEQUENCE, 0, 1, WRAPPED)
    with pytest.raises(ValueError, match=f"pop at most {SLACK}"):
        state.pop(SLACK + 1, 1)
    state(abi.KV_REMOVE_SEQUENCE, 1)
    with pytest.raises(ValueError, match="fork after"):
        state(abi.KV_FORK_SEQUENCE, 0, 1, WRAPPED - SLACK - 1)


def test_nothing_is_left_of_it_once_it_is_cleared(library: Library) -> None:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(5))
    resume(state, read(state))
    with pytest.raises(ValueError, match="a state that was resumed"):
        state(METADATA, 0)
    state.pop(WRAPPED)
    assert state(abi.KV_SHORTEST_LENGTH, 0) == 0
    write(state, 3, np.random.default_rng(6))
    state.pop(2)
    assert state.length == 1


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (abi.KV_READ_ROWS, (9, 0), "expected entry 0 to 2, found 9"),
        (abi.KV_READ_ROWS, (1, WRAPPED - ROWS - 1), "it holds positions 21 to before 33"),
        (abi.KV_READ_ROWS, (0, WRAPPED), "asked for 1 from 33 on"),
        (abi.KV_READ_ROWS, (0, -1), "asked for 1 from -1 on"),
        (abi.KV_WRITE_ROWS, (0, 0), "without tokens, and this one has 33"),
        (abi.KV_RESUME, (5, 5), "resume: the sequence has 33 tokens"),
        (abi.KV_RESUME, (TOTAL + 1, 0), "expected 1 to 60 tokens, found 61"),
    ],
)
def test_what_cannot_be_is_refused(
    library: Library, function: str, arguments: tuple[int, int], message: str
) -> None:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(7))
    layer = LAYERS[max(0, arguments[0]) % len(LAYERS)]
    tensor = tvm.runtime.empty((2, 1, layer.kv_heads, layer.head_dim), "float32")
    given = () if function == abi.KV_RESUME else (tensor,)
    with pytest.raises((ValueError, RuntimeError, IndexError), match=message):
        state(function, 0, *arguments, *given)
    assert state.length == WRAPPED


def test_rows_of_another_shape_or_place_are_refused(library: Library) -> None:
    state = library.state()
    for entry, shape, dtype in [
        (0, (2, 1, 2, 5), "float32"),
        (0, (1, 1, 2, 6), "float32"),
        (0, (2, 1, 2, 6), "float16"),
        (0, (2, 0, 2, 6), "float32"),
    ]:
        with pytest.raises(ValueError, match="expected a tensor of shape"):
            state(abi.KV_WRITE_ROWS, 0, entry, 0, tvm.runtime.empty(shape, dtype))
    for entry, position, rows in [(0, TOTAL, 1), (1, 0, ROWS + 1), (1, -1, 1), (1, TOTAL, 1)]:
        layer = LAYERS[entry]
        tensor = tvm.runtime.empty((2, rows, layer.kv_heads, layer.head_dim), "float32")
        with pytest.raises(ValueError, match=f"rows of entry {entry}"):
            state(abi.KV_WRITE_ROWS, 0, entry, position, tensor)
    state.begin(1)
    with pytest.raises(RuntimeError, match="has not ended"):
        state(abi.KV_READ_ROWS, 0, 0, 0, tvm.runtime.empty((2, 1, 2, 6), "float32"))
