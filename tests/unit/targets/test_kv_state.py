"""The KV state of `targets/native/kv_state.cc`, in a library for the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from gemma4_compile.targets import link, target_spec
from tests.unit.targets.kv_library import CacheOfLayer, NativeState, RotaryKind, build

TOTAL = 40
CHUNK = 4
WINDOW = 8
ROWS = 12  # one more than window - 1 + chunk
LAYERS = (
    CacheOfLayer(kv_heads=1, head_dim=4),
    CacheOfLayer(kv_heads=2, head_dim=6, rows=ROWS, window=WINDOW),
)
ROTARY = (RotaryKind(6, 3, 1e4), RotaryKind(8, 1, 1e6))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("library") / "model.so", LAYERS)


def load(path: Path, layers: tuple[CacheOfLayer, ...], dtype_bits: int = 32) -> Any:
    spec = target_spec("cpu")
    link(build(spec, layers, ROTARY, dtype_bits), path, spec)
    return tvm.runtime.load_module(str(path))


@pytest.fixture
def state(library: Any) -> NativeState:
    made = NativeState(library, total=TOTAL, chunk=CHUNK)
    made(abi.KV_ADD_SEQUENCE, 0)
    return made


# --- Tensors ---


def test_each_layer_has_its_own_heads_and_rows(state: NativeState) -> None:
    for function in (abi.KV_KEY, abi.KV_VALUE):
        assert state(function, 0).shape == (TOTAL, 1, 4)
        assert state(function, 1).shape == (ROWS, 2, 6)
        assert state(function, 1).dtype == "float32"
        assert not state(function, 0).numpy().any()
        assert not state(function, 1).numpy().any()


def test_half_precision_cache(tmp_path: Path) -> None:
    half = NativeState(load(tmp_path / "half.so", LAYERS, 16), total=TOTAL, chunk=CHUNK)
    assert half(abi.KV_KEY, 1).dtype == "float16"


def test_key_and_value_are_the_same_memory_each_time(state: NativeState) -> None:
    key = state(abi.KV_KEY, 1)
    key.copyfrom(np.ones((ROWS, 2, 6), "float32"))
    assert state(abi.KV_KEY, 1).numpy().all()
    assert not state(abi.KV_VALUE, 1).numpy().any()


@pytest.mark.parametrize("slot", [-1, 2])
def test_slot_out_of_range(state: NativeState, slot: int) -> None:
    with pytest.raises(IndexError, match="0 to 1"):
        state(abi.KV_KEY, slot)


# --- Positions and rotary values ---


def test_positions_follow_the_forwards(state: NativeState) -> None:
    first = 0
    for count in (3, 1, 4, 2):
        state.begin(count)
        assert state(abi.KV_POSITIONS).numpy().tolist() == [first, count, first + count, 0]
        assert state.length == first
        state(abi.KV_END_FORWARD)
        first += count
        assert state.length == first


def expected_rotary(first: int, count: int) -> np.ndarray:
    frequencies = [
        np.float32(1.0 / kind.theta ** (2 * j / kind.head_dim))
        for kind in ROTARY
        for j in range(kind.pairs)
    ]
    positions = np.arange(first, first + count, dtype=np.float32)
    angles = (positions[:, None] * np.array(frequencies, np.float32)).astype(np.float64)
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def test_rotary_values_are_numpys(library: Any) -> None:
    """Of the first positions, of all sizes, and of angles above `kMostAngle`."""
    most = 1 << 20
    state = NativeState(library, total=most + 1000, chunk=CHUNK)
    assert state(abi.KV_ROTARY).shape == (CHUNK, 4, 2)
    rng = np.random.default_rng(0)
    places = [*range(20), *range(2040, 2060), *rng.integers(1, most, 2000), most - 2, most + 990]
    for number, first in enumerate(map(int, places)):
        state(abi.KV_ADD_SEQUENCE, number)
        if first:
            state(abi.KV_RESUME, number, first, 0)
        count = 1 + first % CHUNK
        state.begin(count, number)
        values = state(abi.KV_ROTARY).numpy()[:count]
        # sine and cosine of two libraries differ by one unit in the last place at most
        np.testing.assert_allclose(values, expected_rotary(first, count), rtol=0, atol=6e-8)
        state(abi.KV_END_FORWARD)
        state(abi.KV_REMOVE_SEQUENCE, number)


# --- Context ---


def test_full_context_is_an_error_that_leaves_the_state_usable(state: NativeState) -> None:
    for _ in range(9):
        state.forward(4)
    state.forward(2)
    with pytest.raises(ValueError, match="38 of 40 tokens, 3 more"):
        state.begin(3)
    state.forward(2)
    assert state.length == TOTAL
    with pytest.raises(ValueError, match="context is full"):
        state.begin(1)
    state.pop(1)
    state.forward(1)
    assert state.length == TOTAL


@pytest.mark.parametrize("count", [0, -1, CHUNK + 1])
def test_chunk_out_of_range(state: NativeState, count: int) -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        state.begin(count)


def test_begin_and_end_come_in_pairs(state: NativeState) -> None:
    with pytest.raises(RuntimeError, match="without begin_forward"):
        state(abi.KV_END_FORWARD)
    state.begin(1)
    with pytest.raises(RuntimeError, match="has not ended"):
        state.begin(1)
    with pytest.raises(RuntimeError, match="pop_n between"):
        state.pop(0)
    state(abi.KV_END_FORWARD)
    assert state.length == 1


# --- Taking tokens back ---


class Ring:
    """Which position each row of a ring holds, written one by one."""

    def __init__(self) -> None:
        self.rows = [-1] * ROWS
        self.length = 0

    def append(self, count: int) -> None:
        for position in range(self.length, self.length + count):
            self.rows[position % ROWS] = position
        self.length += count

    def may_pop(self, count: int) -> bool:
        left = self.length - count
        attended = range(max(0, left - WINDOW + 1), left)
        return 0 <= left <= self.length and all(
            self.rows[position % ROWS] == position for position in attended
        )

    def pop(self, count: int) -> None:
        self.length -= count


def test_pop_is_allowed_exactly_while_the_ring_holds_what_is_attended(library: Any) -> None:
    rng = np.random.default_rng(7)
    allowed = refused = 0
    for _ in range(60):
        state = NativeState(library, total=TOTAL, chunk=CHUNK)
        state(abi.KV_ADD_SEQUENCE, 0)
        ring = Ring()
        for _ in range(14):
            count = int(rng.integers(1, CHUNK + 1))
            if ring.length + count <= TOTAL:
                state.forward(count)
                ring.append(count)
            count = int(rng.integers(0, min(ring.length + 2, 9)))
            if ring.may_pop(count):
                state.pop(count)
                ring.pop(count)
                allowed += 1
            else:
                with pytest.raises(ValueError, match="cannot pop"):
                    state.pop(count)
                refused += 1
            assert state.length == ring.length
    assert allowed > 100
    assert refused > 100


def test_pop_at_the_border(state: NativeState) -> None:
    for _ in range(5):
        state.forward(4)
    # 20 tokens: the ring holds 8 to 19, and the token at 15 attends to 8 and later.
    with pytest.raises(ValueError, match="pop at most 5, or all 20"):
        state.pop(6)
    state.pop(5)
    with pytest.raises(ValueError, match="pop at most 0, or all 15"):
        state.pop(1)
    state.pop(15)
    assert state.length == 0


def test_popping_everything_makes_the_ring_new(state: NativeState) -> None:
    for _ in range(5):
        state.forward(4)
    state.pop(20)
    state.forward(4)
    state.pop(3)
    assert state.length == 1


def test_pop_within_the_ring_is_free(state: NativeState) -> None:
    for _ in range(3):
        state.forward(4)
    state.pop(11)
    assert state.length == 1


@pytest.mark.parametrize("count", [-1, 4])
def test_pop_of_impossible_counts(state: NativeState, count: int) -> None:
    state.forward(3)
    with pytest.raises(ValueError, match=f"cannot pop {count} "):
        state.pop(count)


# --- Sequences ---


def test_clear_starts_anew(state: NativeState) -> None:
    state.forward(4)
    state.begin(2)
    state(abi.KV_CLEAR)
    with pytest.raises(ValueError, match="no sequence 0"):
        state.begin(1)
    state.add(5)
    assert state.length_of(5) == 0
    state.begin(1, sequence=5)
    assert state(abi.KV_POSITIONS).numpy().tolist() == [0, 1, 1, 0]


def test_one_sequence_at_a_time(state: NativeState) -> None:
    state.forward(1)
    with pytest.raises(ValueError, match="remove sequence 0"):
        state(abi.KV_ADD_SEQUENCE, 1)
    with pytest.raises(ValueError, match="no sequence 3"):
        state(abi.KV_REMOVE_SEQUENCE, 3)
    assert state.length == 1
    state(abi.KV_REMOVE_SEQUENCE, 0)
    state.add(1)
    assert state.length_of(1) == 0


def test_the_clients_functions_drive_the_same_state(state: NativeState) -> None:
    def call(name: str, *arguments: Any) -> None:
        tvm.get_global_func(f"vm.builtin.kv_state_{name}")(state.state, *arguments)

    call("clear")
    call("add_sequence", 0)
    call("begin_forward", tvm.runtime.ShapeTuple([0]), tvm.runtime.ShapeTuple([3]))
    assert state(abi.KV_POSITIONS).numpy().tolist() == [0, 3, 3, 0]
    call("end_forward")
    call("popn", 0, 1)
    assert state.length == 2
    call("remove_sequence", 0)
    with pytest.raises(ValueError, match="no sequence 0"):
        state.length_of(0)


# --- Creation ---


def test_longest_chunk_that_a_ring_takes(library: Any) -> None:
    longest = ROWS - WINDOW + 1
    NativeState(library, total=TOTAL, chunk=longest)
    with pytest.raises(ValueError, match=f"at most {longest} tokens, asked for {longest + 1}"):
        NativeState(library, total=TOTAL, chunk=longest + 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"total": 0, "chunk": 1}, "context length"),
        ({"total": 2**31, "chunk": 1}, "context length"),
        ({"total": 8, "chunk": 0}, "prefill chunk"),
        ({"total": 8, "chunk": 1, "max_sequences": 0}, "sequences: expected 1 to"),
        ({"total": 8, "chunk": 1, "max_sequences": 2**31}, "sequences: expected 1 to"),
        ({"total": 8, "chunk": 1, "sliding": 1}, "sliding window off"),
    ],
)
def test_impossible_sizes(library: Any, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeState(library, **sizes)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((CacheOfLayer(0, 4),), "0 heads"),
        ((CacheOfLayer(1, 4), CacheOfLayer(1, 4, rows=8)), "slot 1: a ring needs a window"),
        ((CacheOfLayer(1, 4, rows=-3, window=2),), "found 3 parts, window 2"),
        ((CacheOfLayer(1, 4, rows=-2),), "the last layer has 1 of its parts"),
        (
            (CacheOfLayer(1, 4, rows=-2), CacheOfLayer(1, 4, rows=-3)),
            "slot 1: expected part 1 .* found 3 parts",
        ),
    ],
)
def test_impossible_layouts(tmp_path: Path, layers: tuple[CacheOfLayer, ...], message: str) -> None:
    library = load(tmp_path / "model.so", layers)
    with pytest.raises(ValueError, match=message):
        NativeState(library, total=8, chunk=1)


def test_failed_allocation_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    # 2**49 bytes: beyond the address space, so that no system only pretends to give them
    library = load(tmp_path / "model.so", (CacheOfLayer(2**12, 2**15),))
    with pytest.raises(RuntimeError, match="cannot allocate"):
        NativeState(library, total=2**20, chunk=1)


# --- Two libraries ---


def test_two_libraries_in_one_process_keep_apart(library: Any, tmp_path: Path) -> None:
    other = load(tmp_path / "other.so", (CacheOfLayer(3, 2),))
    first = NativeState(library, total=TOTAL, chunk=CHUNK)
    second = NativeState(other, total=10, chunk=9)
    for state, count in ((first, 2), (second, 9)):
        state(abi.KV_ADD_SEQUENCE, 0)
        state.forward(count)
    assert (first.length, second.length) == (2, 9)
    assert first(abi.KV_KEY, 0).shape == (TOTAL, 1, 4)
    assert second(abi.KV_KEY, 0).shape == (10, 3, 2)
    with pytest.raises(ValueError, match="context is full"):
        second.begin(2)
