"""Full layers in parts, `targets/native/kv_state.cc`, each held against one that is whole."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile import abi
from tests.unit.targets.checkpoints import export, load, restore
from tests.unit.targets.kv_library import CacheOfLayer, NativeState

CHUNK, WINDOW = 4, 8
RING = CacheOfLayer(kv_heads=1, head_dim=2, rows=12, window=WINDOW)
# A layer that is whole, a ring, and the first again in three parts and in five.
LAYERS = (
    CacheOfLayer(kv_heads=2, head_dim=6),
    RING,
    *[CacheOfLayer(kv_heads=2, head_dim=6, rows=-3)] * 3,
    *[CacheOfLayer(kv_heads=2, head_dim=6, rows=-5)] * 5,
)
PARTS = {3: range(2, 5), 5: range(5, 10)}  # entries by the number of parts
FUNCTIONS = (abi.KV_KEY, abi.KV_VALUE)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    return load(tmp_path_factory.mktemp("parts"), layers=LAYERS).module


def state_of(library: object, total: int, count: int = 2) -> NativeState:
    state = NativeState(library, total=total, chunk=CHUNK, max_sequences=count)
    state.add(0)
    return state


def put(state: NativeState, entry: int, function: str, row: int, values: np.ndarray) -> None:
    tensor = state(function, entry)
    rows = tensor.numpy()
    rows[row] = values
    tensor.copyfrom(rows)


def write(state: NativeState, length: int, seed: int, sequence: int = 0) -> None:
    """Forward one token after the other; the whole layer and the parts get the same rows."""
    rng = np.random.default_rng(seed)
    while (position := state.length_of(sequence)) < length:
        state.begin(1, sequence)
        for function in FUNCTIONS:
            values = rng.standard_normal((2, 6))
            put(state, 0, function, position, values)
            put(state, 1, function, position % RING.rows, rng.standard_normal((1, 2)))
            for entries in PARTS.values():
                size = state(function, entries[0]).shape[0]
                put(state, entries[position // size], function, position % size, values)
        state(abi.KV_END_FORWARD)


def check(state: NativeState, sequence: int = 0) -> None:
    """The rows of the parts, one after the other, are those of the whole layer."""
    length = state.length_of(sequence)
    state.forward(1, sequence)
    state.pop(1, sequence)
    for function in FUNCTIONS:
        whole = state(function, 0).numpy()[:length]
        for entries in PARTS.values():
            rows = np.concatenate([state(function, entry).numpy() for entry in entries])
            np.testing.assert_array_equal(rows[:length], whole)


@pytest.mark.parametrize("total", [1, 4, 15, 17, 40])
def test_parts_are_equal_and_hold_the_context(library: object, total: int) -> None:
    state = state_of(library, total)
    for count, entries in PARTS.items():
        tensors = [state(function, entry) for entry in entries for function in FUNCTIONS]
        assert {tuple(tensor.shape) for tensor in tensors} == {(-(-total // count), 2, 6)}
        assert not any(tensor.numpy().any() for tensor in tensors)


def test_forks_have_the_rows_of_every_part(library: object) -> None:
    state = state_of(library, 40)
    write(state, 29, 1)
    check(state)
    for child, position in enumerate((29, 27, 0), 1):
        state(abi.KV_FORK_SEQUENCE, 0, child, position)
        assert state.length_of(child) == position
        check(state, child)
        write(state, position + 3, 2, child)
        check(state, child)
        state(abi.KV_REMOVE_SEQUENCE, child)
        check(state)


@pytest.mark.parametrize("length", [1, 8, 13, 14, 15, 31, 40])
def test_a_checkpoint_has_the_rows_of_every_part(library: object, length: int) -> None:
    state, other = state_of(library, 41), state_of(library, 41)
    write(state, length, 3)
    checkpoint = export(state)
    assert sum(group.nbytes for group in checkpoint.groups) == 2 * 4 * (
        3 * 12 * length + 2 * min(length, RING.rows)
    )
    write(other, 20, 4)
    restore(other, checkpoint)
    assert other.length == length
    check(other)
    for function in FUNCTIONS:
        np.testing.assert_array_equal(
            other(function, 0).numpy()[:length], state(function, 0).numpy()[:length]
        )


def test_tokens_are_taken_back_as_far_as_the_rings_allow(library: object) -> None:
    state = state_of(library, 40)
    write(state, 33, 5)
    with pytest.raises(ValueError, match="pop at most 5, or all 33"):
        state.pop(6)
    state.pop(5)
    write(state, 40, 6)
    assert state.length == 40
    with pytest.raises(ValueError, match="the context is full"):
        state.begin(1)
