"""Rows that another stream brings, of `targets/native/kv_rows.cc`: where they lie, who waits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from tests.unit.targets.checkpoints import LAYERS, ROWS, TOTAL, WRAPPED, Library, load, write
from tests.unit.targets.kv_library import NativeState

WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
EVENTS = [70 + entry for entry in range(len(LAYERS))]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("rows"))


def send(state: NativeState, entry: int, first: int, rows: np.ndarray) -> None:
    """Copy rows (2, n, heads, head_dim) to where the state says that they lie."""
    numbers = [int(one) for one in state(abi.KV_ROW_PLACES, 0, entry, first, rows.shape[1])]
    parts = [numbers[at : at + 3] for at in range(0, len(numbers), 3)]
    assert sum(nbytes for *_, nbytes in parts) == rows[0].nbytes
    done = 0
    for *places, nbytes in parts:
        for place, half in zip(places, rows, strict=True):
            ctypes.memmove(place, half.tobytes()[done:], nbytes)
        done += nbytes


@pytest.mark.parametrize("first", [0, ROWS - 2, WRAPPED - ROWS])
def test_rows_lie_where_they_are_read(library: Library, first: int) -> None:
    """Those of a ring on both sides of its end, too; none touches another."""
    state = library.state()
    draws, sent = np.random.default_rng(first), dict[int, tuple[int, np.ndarray]]()
    for entry, layer in enumerate(LAYERS):
        low = max(0, first + 5 - ROWS) if layer.window else 0
        shape = (2, first + 5 - low, layer.kv_heads, layer.head_dim)
        rows = draws.standard_normal(shape, np.float32)
        if first > low:
            send(state, entry, low, rows[:, : first - low])
        send(state, entry, first, rows[:, first - low :])
        sent[entry] = low, rows
    state(abi.KV_RESUME, 0, first + 5, first + 5)
    for entry, (low, expected) in sent.items():
        found = tvm.runtime.empty(expected.shape, "float32")
        state(abi.KV_READ_ROWS, 0, entry, low, found)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_a_layer_waits_for_its_rows_once_and_in_its_forward_alone(library: Library) -> None:
    state, waited = library.state(), list[tuple[int | None, int, int]]()

    @WAIT
    def wait(stream: int | None, event: int, flags: int) -> int:
        waited.append((stream, event, flags))
        return 0

    def expect(events: list[int]) -> None:
        address = ctypes.cast(wait, ctypes.c_void_p).value
        assert address is not None
        state(abi.KV_EXPECT_ROWS, tvm.runtime.ShapeTuple(events), address)

    state.begin(1)
    state(abi.KV_KEY, 0)
    expect([EVENTS[0], 0, EVENTS[2]])
    for function in (abi.KV_KEY, abi.KV_VALUE):
        for entry in (1, 0, 2):
            state(function, entry)
    assert waited == [(None, EVENTS[0], 0), (None, EVENTS[2], 0)]
    state(abi.KV_END_FORWARD)
    for ends in (True, False):
        waited.clear()
        if state.length_of(0) == 1:
            state.begin(1)
        expect(EVENTS)
        if ends:
            state(abi.KV_END_FORWARD)
        else:  # as after an error: the sequence is removed within a forward
            state(abi.KV_REMOVE_SEQUENCE, 0)
            state.add(0)
            state.begin(1)
        state(abi.KV_VALUE, 1)
        assert waited == []
        if ends:
            state.begin(1)


def test_a_wait_that_fails_is_an_error(library: Library) -> None:
    state = library.state()
    fails = WAIT(lambda *_: 700)
    state.begin(1)
    address = ctypes.cast(fails, ctypes.c_void_p).value
    assert address is not None
    state(abi.KV_EXPECT_ROWS, tvm.runtime.ShapeTuple(EVENTS), address)
    with pytest.raises(RuntimeError, match="rows of entry 1 cannot be waited for: error 700"):
        state(abi.KV_KEY, 1)


def test_rows_without_a_place_are_refused(library: Library) -> None:
    state = library.state()
    for entry, position, count in [(0, TOTAL, 1), (1, 0, ROWS + 1), (1, -1, 1), (0, 0, 0)]:
        with pytest.raises(ValueError, match=f"rows of entry {entry}: it has"):
            state(abi.KV_ROW_PLACES, 0, entry, position, count)
    with pytest.raises(IndexError, match="expected entry 0 to 2, found 3"):
        state(abi.KV_ROW_PLACES, 0, 3, 0, 1)
    write(state, 3, np.random.default_rng(1))
    with pytest.raises(ValueError, match="without tokens, and this one has 3"):
        state(abi.KV_ROW_PLACES, 0, 0, 0, 1)
