"""Forwards of several sequences in one state, in a library for the CPU: where their rows are."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile import abi
from tests.unit.targets.checkpoints import CHUNK, LAYERS, ROWS, TOTAL, WINDOW, Library, load
from tests.unit.targets.kv_library import NativeState

FUNCTIONS = (abi.KV_KEY, abi.KV_VALUE)
OF_ROWS = (abi.KV_KEY_OF_ROW, abi.KV_VALUE_OF_ROW)
POOLS = (abi.KV_KEY_POOL, abi.KV_VALUE_POOL)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("rows"))


def state_of(library: Library, count: int) -> NativeState:
    return NativeState(library.module, total=TOTAL, chunk=CHUNK, max_sequences=count)


def test_rows_of_several_find_their_slots_in_one_memory(library: Library) -> None:
    """Each row has its position, its slot, and the rotary values of its position."""
    state = state_of(library, 3)
    for name in (7, 8, 9):
        state.add(name)
    state.forward(3, 8)
    for _ in range(5):
        state.forward(2, 9)
    state.begin_all([9, 7, 8], [1, 1, 1])
    assert state(abi.KV_ROW_SLOTS).numpy()[:3].tolist() == [[10, 2], [0, 0], [3, 1]]
    of_rows = {
        (function, layer, row): np.from_dlpack(state(function, layer, row))
        for function in OF_ROWS
        for layer in range(len(LAYERS))
        for row in range(4)  # behind the last row as that one
    }
    rotary = state(abi.KV_ROTARY).numpy()[:3].copy()
    with pytest.raises(RuntimeError, match="of sequence 9, has not ended"):
        state.begin(1, 7)
    state(abi.KV_END_FORWARD)
    assert [state.length_of(name) for name in (7, 8, 9)] == [1, 4, 11]
    for row, name in enumerate((9, 7, 8)):
        state.pop(1, name)
        state.begin(1, name)
        np.testing.assert_array_equal(state(abi.KV_ROTARY).numpy()[0], rotary[row])
        state(abi.KV_END_FORWARD)
        for layer in range(len(LAYERS)):
            for function, pool, of_row in zip(FUNCTIONS, POOLS, OF_ROWS, strict=True):
                whole = np.from_dlpack(state(pool, layer))
                own = np.from_dlpack(state(function, layer))
                slot = {9: 2, 7: 0, 8: 1}[name]
                assert whole.shape[0] == 3
                assert whole[slot].ctypes.data == own.ctypes.data
                for number in (row, 3) if row == 2 else (row,):
                    found = of_rows[of_row, layer, number]
                    assert (found.ctypes.data, found.shape) == (own.ctypes.data, own.shape)
                assert whole.shape[2:] == own.shape[1:]
    # Full layers, whose rows are no multiple of what kernels assume of addresses.
    assert np.from_dlpack(state(abi.KV_KEY_POOL, 0))[1].nbytes % 64 == 0


def test_a_sequence_may_have_several_of_the_rows(library: Library) -> None:
    """One after another, from its end on; some are taken back, and rings reach as far as alone."""
    state, alone = state_of(library, 3), library.state()
    for name in (7, 8, 9):
        state.add(name)
    for one, name in ((state, 9), (alone, 0)):
        for _ in range(ROWS - 2):
            one.forward(1, name)
    state.begin_all([9, 7], [3, 1])
    rotary = state(abi.KV_ROTARY).numpy()[:4].copy()
    assert state(abi.KV_ROW_SLOTS).numpy()[:4].tolist() == [
        *([ROWS - 2 + token, 2] for token in range(3)),
        [0, 0],
    ]
    state(abi.KV_END_FORWARD)
    alone.begin(3)
    np.testing.assert_array_equal(alone(abi.KV_ROTARY).numpy()[:3], rotary[:3])
    alone(abi.KV_END_FORWARD)
    assert [state.length_of(name) for name in (7, 8, 9)] == [1, 0, ROWS + 1]
    assert state(abi.KV_SHORTEST_LENGTH, 9) == alone(abi.KV_SHORTEST_LENGTH, 0) == WINDOW
    state.pop(2, 9)
    assert state.length_of(9) == ROWS - 1
    with pytest.raises(ValueError, match="have overwritten"):
        state.pop(ROWS - WINDOW, 9)


def test_rows_that_several_cannot_have_are_refused_and_change_nothing(library: Library) -> None:
    state = state_of(library, 6)
    for name in range(6):
        state.add(name)
    for _ in range(TOTAL):
        state.forward(1, 1)
    wrong: list[tuple[list[int], list[int], type[Exception], str]] = [
        ([0, 2, 0], [1, 1, 1], ValueError, "sequence 0 is named twice"),
        ([0, 7], [1, 1], ValueError, "no sequence 7"),
        ([0, 1], [1, 1], ValueError, f"holds {TOTAL} of {TOTAL} tokens"),
        ([0, 2, 3, 4, 5], [1] * 5, ValueError, f"at most {CHUNK} tokens of all sequences, found 5"),
        ([0, 2], [1, CHUNK], ValueError, f"at most {CHUNK} tokens of all sequences, found 5"),
        ([2, 3], [1, CHUNK + 1], ValueError, f"expected 1 to {CHUNK} tokens, found 5"),
        ([2, 3], [0, 1], ValueError, f"expected 1 to {CHUNK} tokens, found 0"),
    ]
    for names, counts, error, message in wrong:
        with pytest.raises(error, match=message):
            state.begin_all(names, counts)
    state.begin_all([2, 0], [1, 1])
    state(abi.KV_REMOVE_SEQUENCE, 2)  # within the forward
    state(abi.KV_END_FORWARD)
    with pytest.raises(RuntimeError, match="end_forward without begin_forward"):
        state(abi.KV_END_FORWARD)
    assert [state.length_of(name) for name in (0, 1, 3)] == [1, TOTAL, 0]
