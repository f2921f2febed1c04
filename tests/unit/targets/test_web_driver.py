"""`targets/native/web_driver.cc` on the CPU; `tests/web/test_driver.py` has it on WebGPU."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.targets import target_spec
from tests.unit.targets.driver_library import Driver, link
from tests.unit.targets.kv_library import CacheOfLayer, NativeState, RotaryKind, build

TOTAL = 40
CHUNK = 4
WINDOW = 8
ROWS = 12
LAYERS = (
    CacheOfLayer(kv_heads=1, head_dim=4),
    CacheOfLayer(kv_heads=2, head_dim=6, rows=ROWS, window=WINDOW),
    CacheOfLayer(kv_heads=1, head_dim=2, rows=ROWS + 3, window=WINDOW + 1),
)
ROTARY = (RotaryKind(6, 3, 1e4), RotaryKind(8, 1, 1e6))
PAIRS = 4
ROOM_OF_RINGS = min(ROWS - WINDOW + 1, ROWS + 3 - (WINDOW + 1) + 1)

STATE_CALLS: dict[str, tuple[Any, ...]] = {
    "state": (None, 0),
    "length": (),
    "version": (),
    "room": (),
    "step_bytes": (),
    "step": (0, None, None),
    "wrote": (0,),
}


@dataclass(frozen=True)
class Library:
    module: Any
    driver: Driver

    def state(self, total: int = TOTAL) -> NativeState:
        state = NativeState(self.module, total=total, chunk=CHUNK)
        state(abi.KV_ADD_SEQUENCE, 0)
        return state


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("driver") / "model.so"
    link(build(target_spec("cpu"), LAYERS, ROTARY), path)
    return Library(tvm.runtime.load_module(str(path)), Driver(path))


# --- Description ---


def test_the_interface_names_the_functions_of_the_abi_and_the_types_of_the_runtime(
    library: Library,
) -> None:
    told = json.loads(library.driver("interface"))
    assert told["abi"] == 1
    assert told["functions"] == {
        "prefill": abi.PREFILL,
        "decode": abi.DECODE,
        "softmax": abi.SOFTMAX,
        "argsort": abi.ARGSORT,
        "sample": abi.SAMPLE_TOP_P,
        "metadata": abi.METADATA,
    }
    registered = {
        name: tvm_ffi.core._object_type_key_to_index(f"ffi.{key}")
        for name, key in (("string", "String"), ("function", "Function"), ("tensor", "Tensor"))
    }
    static = {"none": 0, "int": 1, "float": 3, "raw_string": 8, "object_from": 64}
    assert told["types"] == {**static, **registered}
    assert told["any_bytes"] == 16
    assert told["tvm"] == tvm.__version__.split(".post")[0]
    assert told["tvm_ffi"].split(".")[:2] == tvm_ffi.__version__.split(".")[:2]


# --- Objects ---


def test_a_tensor_is_found_by_itself_and_at_the_head_of_an_array(library: Library) -> None:
    tensor = tvm.runtime.tensor(np.zeros(3, "float32"))
    pair = tvm_ffi.Array([tensor, 5])
    handle = tensor.__chandle__()
    assert library.driver("tensor", tensor) == handle
    assert library.driver("tensor", pair) == handle
    assert library.driver("use_count", tensor) >= 2
    before = library.driver("use_count", tensor)
    more = tvm_ffi.Array([tensor])
    assert library.driver("use_count", tensor) == before + 1
    del more, pair
    assert library.driver("use_count", tensor) == before - 1


@pytest.mark.parametrize(
    "make",
    [
        lambda library: tvm_ffi.Array([]),
        lambda library: tvm_ffi.Array([1, 2]),
        lambda library: tvm_ffi.Array([tvm_ffi.Array([1])]),
        lambda library: tvm_ffi.Map({"a": 1}),
        lambda library: tvm.get_global_func("vm.builtin.kv_state_clear"),
        lambda library: library.module,
    ],
    ids=["empty", "numbers", "nested", "map", "function", "module"],
)
def test_any_other_object_is_answered_and_not_fatal(
    make: Callable[[Library], Any], library: Library
) -> None:
    other = make(library)
    assert library.driver("tensor", other) is None
    assert library.driver("buffer", other) == -1
    assert library.driver("use_count", other) >= 1
    for name, arguments in STATE_CALLS.items():
        assert library.driver(name, other, *arguments) == -1, name


def test_no_object_is_answered_too(library: Library) -> None:
    assert library.driver("tensor", None) is None
    for name in ("buffer", "use_count"):
        assert library.driver(name, None) == -1
    for name, arguments in STATE_CALLS.items():
        assert library.driver(name, None, *arguments) == -1, name


def test_a_state_is_no_tensor(library: Library) -> None:
    state = library.state().state
    assert library.driver("tensor", state) is None
    assert library.driver("buffer", state) == -1


def test_a_state_with_room_for_several_sequences_is_not_driven_from_outside(
    library: Library,
) -> None:
    """Its steps do not all read the same buffers."""
    state = NativeState(library.module, total=TOTAL, chunk=CHUNK, max_sequences=2)
    state.add(0)
    for name, arguments in STATE_CALLS.items():
        assert library.driver(name, state.state, *arguments) == -1, name


def test_a_tensor_elsewhere_has_no_buffer(library: Library) -> None:
    assert library.driver("buffer", tvm.runtime.tensor(np.zeros(3, "float32"))) == -1


# --- State ---


@pytest.mark.parametrize("capacity", [-1, 0, 1, 8, 20])
def test_buffers_are_counted_and_never_written_past_the_end(
    library: Library, capacity: int
) -> None:
    count, numbers = library.driver.state(library.state().state, max(capacity, 0))
    assert count == 2 + 2 * len(LAYERS)
    written = min(max(capacity, 0), count)
    assert numbers == [-1] * written + [-7] * (len(numbers) - written)  # none is on WebGPU


def test_length_counts_ended_forwards(library: Library) -> None:
    state = library.state()
    state.forward(3)
    state.begin(2)
    assert library.driver("length", state.state) == 3
    state(abi.KV_END_FORWARD)
    assert library.driver("length", state.state) == 5


def test_every_change_counts_once_and_the_end_of_a_forward_does_not(library: Library) -> None:
    state = library.state()
    version = library.driver("version", state.state)

    def grows_by(count: int, change: Callable[[], Any]) -> None:
        nonlocal version
        change()
        assert library.driver("version", state.state) == version + count
        version += count

    grows_by(1, lambda: state.begin(3))
    grows_by(0, lambda: state(abi.KV_END_FORWARD))
    grows_by(1, lambda: state.pop(1))
    grows_by(1, lambda: state.pop(0))
    grows_by(0, lambda: state.length)
    grows_by(1, lambda: state(abi.KV_REMOVE_SEQUENCE, 0))
    grows_by(1, lambda: state.add(4))
    grows_by(1, lambda: state(abi.KV_CLEAR))


def test_refused_calls_do_not_count(library: Library) -> None:
    state = library.state()
    version = library.driver("version", state.state)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: state.begin(CHUNK + 1),
        lambda: state.begin(1, sequence=9),
        lambda: state.pop(1),
        lambda: state(abi.KV_REMOVE_SEQUENCE, 9),
        lambda: state(abi.KV_FORK_SEQUENCE, 0, 1, 0),
        lambda: state.add(0),
    )
    for change in changes:
        with pytest.raises(ValueError):  # noqa: PT011
            change()
    assert library.driver("version", state.state) == version


def test_room_is_what_the_tightest_ring_or_the_context_leaves(library: Library) -> None:
    state = library.state()
    assert library.driver("room", state.state) == ROOM_OF_RINGS
    state.forward(4)
    state.begin(1)
    assert library.driver("room", state.state) == ROOM_OF_RINGS
    state(abi.KV_END_FORWARD)
    while state.length < TOTAL:
        left = TOTAL - state.length
        assert library.driver("room", state.state) == min(ROOM_OF_RINGS, left)
        state.forward(1)
    assert library.driver("room", state.state) == 0


def test_rings_longer_than_the_context_limit_nothing(library: Library) -> None:
    state = library.state(total=10)
    assert library.driver("room", state.state) == 10


def test_as_many_tokens_as_there_is_room_for_can_be_taken_back(library: Library) -> None:
    """One more, and the state refuses to go back to where they began."""
    for ahead, is_held in ((ROOM_OF_RINGS, True), (ROOM_OF_RINGS + 1, False)):
        state = library.state()
        for _ in range(20):
            state.forward(1)
        assert library.driver("wrote", state.state, 20 + ahead) == 0
        state.forward(1)
        if is_held:
            state.pop(1)
            assert state.length == 20
        else:
            with pytest.raises(ValueError, match="pop at most 0"):
                state.pop(1)


def test_rows_written_ahead_are_never_fewer_than_before(library: Library) -> None:
    state = library.state()
    for _ in range(20):
        state.forward(1)
    assert library.driver("wrote", state.state, 3) == 0
    with pytest.raises(ValueError, match="pop at most 5, or all 20"):
        state.pop(6)


@pytest.mark.parametrize("length", [-1, TOTAL + 1])
def test_rows_outside_the_context_are_refused(library: Library, length: int) -> None:
    assert library.driver("wrote", library.state().state, length) == -1


def test_nothing_is_written_without_a_sequence(library: Library) -> None:
    state = library.state()
    state(abi.KV_CLEAR)
    assert library.driver("wrote", state.state, 1) == -1


# --- Steps ---


def test_a_step_is_what_begin_forward_uploads(library: Library) -> None:
    state = library.state()
    assert library.driver("step_bytes", state.state) == PAIRS * 2 * 4
    for position in range(TOTAL):
        result, positions, rotary = library.driver.step(state.state, position, PAIRS)
        assert result == 0
        state.begin(1)
        assert positions == state(abi.KV_POSITIONS).numpy().tolist()
        np.testing.assert_array_equal(rotary, state(abi.KV_ROTARY).numpy()[0])
        state(abi.KV_END_FORWARD)


@pytest.mark.parametrize("position", [-1, TOTAL])
def test_a_step_outside_the_context_is_refused(library: Library, position: int) -> None:
    result, positions, rotary = library.driver.step(library.state().state, position, PAIRS)
    assert result == -1
    assert positions == [0, 0, 0, 0]
    assert np.isnan(rotary).all()
