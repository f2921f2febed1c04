"""Checkpoints of `targets/native/kv_checkpoint.cc`, in a library for the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from tests.unit.targets.checkpoints import (
    EXPORT,
    FINISH,
    IMPORT,
    LAYERS,
    LENGTH,
    METADATA,
    PREPARE,
    ROWS,
    TOTAL,
    WRAPPED,
    Checkpoint,
    Library,
    export,
    load,
    prepare,
    restore,
    rows_of,
    write,
)
from tests.unit.targets.driver_library import CHECKPOINT_BYTES, GROUP_BYTES
from tests.unit.targets.kv_library import CacheOfLayer


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def checkpoint(library: Library) -> Checkpoint:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(5))
    return export(state)


# --- There and back ---


@pytest.mark.parametrize("length", [1, 7, ROWS, ROWS + 1, ROWS + 3, ROWS + 4, WRAPPED, TOTAL])
def test_a_fresh_state_holds_what_the_exported_one_held(library: Library, length: int) -> None:
    state = library.state()
    write(state, length, np.random.default_rng(length))
    fresh = library.state()
    restore(fresh, export(state))
    assert fresh.length == fresh(LENGTH, 0) == length
    for expected, found in zip(rows_of(state), rows_of(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_both_go_on_alike(library: Library, checkpoint: Checkpoint) -> None:
    first, second = library.state(), library.state()
    for state in (first, second):
        restore(state, checkpoint)
        write(state, WRAPPED + 9, np.random.default_rng(6))
    for one, other in zip(rows_of(first), rows_of(second), strict=True):
        np.testing.assert_array_equal(one, other)
    assert first(abi.KV_POSITIONS).numpy().tolist() == second(abi.KV_POSITIONS).numpy().tolist()


def test_as_many_tokens_can_be_taken_back_as_before(library: Library) -> None:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(1))
    state.pop(2)
    fresh = library.state()
    restore(fresh, export(state))
    for one in (state, fresh):
        with pytest.raises(ValueError, match="pop at most 3, or all 31"):
            one.pop(4)
        one.pop(3)


def test_half_precision(tmp_path: Path) -> None:
    library = load(tmp_path, dtype_bits=16)
    state, fresh = library.state(), library.state()
    write(state, WRAPPED, np.random.default_rng(2))
    made = export(state)
    assert all(group.dtype == np.float16 for group in made.groups)
    restore(fresh, made)
    for expected, found in zip(rows_of(state), rows_of(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_import_takes_the_place_of_what_was_there(
    library: Library, checkpoint: Checkpoint
) -> None:
    state = library.state()
    write(state, 50, np.random.default_rng(3))
    restore(state, checkpoint)
    assert state.length == WRAPPED
    write(state, WRAPPED + 1, np.random.default_rng(4))


def test_a_sequence_is_made_where_there_is_none(library: Library, checkpoint: Checkpoint) -> None:
    state = library.state()
    state(abi.KV_CLEAR)
    restore(state, checkpoint)
    assert state(LENGTH, 0) == WRAPPED


def test_nothing_can_be_kept(library: Library) -> None:
    state, fresh = library.state(), library.state()
    empty = export(state)
    assert empty.groups == []
    restore(fresh, empty)
    fresh.forward(1)
    assert fresh.length == 1


# --- Sizes ---


def test_groups_are_small_and_hold_only_live_rows(library: Library) -> None:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(0))
    made = export(state)
    assert max(group.nbytes for group in made.groups) <= GROUP_BYTES
    rows = {slot: 0 for slot in range(len(LAYERS))}
    for described, group in zip(made.metadata["groups"], made.groups, strict=True):
        assert described["layer_end"] == described["layer_begin"] + 1
        assert described["first_row"] == rows[described["layer_begin"]]
        rows[described["layer_begin"]] += group.shape[1]
    assert rows == {0: WRAPPED, 1: ROWS, 2: ROWS + 3}
    assert len(made.groups) > len(LAYERS)


def test_a_checkpoint_beyond_the_limit_is_refused_by_name(tmp_path: Path) -> None:
    library = load(tmp_path, layers=(CacheOfLayer(kv_heads=1, head_dim=64),))
    row_bytes = 2 * 64 * 4
    state = library.state()
    for _ in range(CHECKPOINT_BYTES // row_bytes):
        state.forward(1)
    export(state)
    state.forward(1)
    with pytest.raises(ValueError, match=f"at most {CHECKPOINT_BYTES}"):
        state(METADATA, 0)
    state.forward(1)


def test_the_client_finds_the_fields_that_it_reads(checkpoint: Checkpoint) -> None:
    metadata = checkpoint.metadata
    assert metadata["seq_length"] == WRAPPED
    assert isinstance(metadata["layout_hash"], str)
    assert metadata["page_size"] == 1  # so that it may capture after any token
    for index, group in enumerate(metadata["groups"]):
        assert group["group_index"] == index
        assert {type(group[name]) for name in ("layer_begin", "layer_end")} == {int}


# --- Imports that do not end ---


def test_a_missing_group_is_named_and_nothing_is_forwarded(
    library: Library, checkpoint: Checkpoint
) -> None:
    state = library.state()
    prepare(state, checkpoint.metadata)
    for index, group in enumerate(checkpoint.groups):
        if index != 1:
            state(IMPORT, 0, index, tvm.runtime.tensor(group))
    with pytest.raises(ValueError, match=f"page group 1 of {len(checkpoint.groups)} is missing"):
        state(FINISH, 0)
    with pytest.raises(RuntimeError, match="is being imported"):
        state.begin(1)
    with pytest.raises(ValueError, match="being imported"):
        state(METADATA, 0)
    state(IMPORT, 0, 1, tvm.runtime.tensor(checkpoint.groups[1]))
    state(FINISH, 0)
    assert state.length == WRAPPED


@pytest.mark.parametrize("end", [abi.KV_CLEAR, abi.KV_REMOVE_SEQUENCE])
def test_a_state_that_is_cleared_forgets_the_import(
    library: Library, checkpoint: Checkpoint, end: str
) -> None:
    state = library.state()
    prepare(state, checkpoint.metadata)
    state(end, *([0] if end == abi.KV_REMOVE_SEQUENCE else []))
    state(abi.KV_ADD_SEQUENCE, 0)
    for function, arguments in ((IMPORT, (0, None)), (FINISH, ())):
        with pytest.raises(ValueError, match="no import was prepared"):
            state(function, 0, *arguments)
    state.forward(1)
    assert state.length == 1


def test_an_import_can_be_prepared_anew(library: Library, checkpoint: Checkpoint) -> None:
    state = library.state()
    prepare(state, checkpoint.metadata)
    state(IMPORT, 0, 0, tvm.runtime.tensor(checkpoint.groups[0]))
    restore(state, checkpoint)
    assert state.length == WRAPPED


def test_every_step_of_an_import_is_a_new_version(library: Library, checkpoint: Checkpoint) -> None:
    state = library.state()
    version = library.driver("version", state.state)
    restore(state, checkpoint)
    assert library.driver("version", state.state) == version + 2 + len(checkpoint.groups)
    export(state)
    assert library.driver("version", state.state) == version + 2 + len(checkpoint.groups)


# --- Calls ---


def test_a_forward_that_has_not_ended_is_not_kept(library: Library) -> None:
    state = library.state()
    state.begin(1)
    with pytest.raises(ValueError, match="between begin_forward and end_forward"):
        state(METADATA, 0)
    state(abi.KV_END_FORWARD)
    export(state)


@pytest.mark.parametrize("function", [METADATA, EXPORT, IMPORT, FINISH, LENGTH])
def test_another_sequence(library: Library, function: str) -> None:
    with pytest.raises(ValueError, match="no sequence 3"):
        library.state()(function, 3)


def test_an_import_into_another_sequence(library: Library, checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="into sequence 3"):
        library.state()(PREPARE, 3, json.dumps(checkpoint.metadata))


@pytest.mark.parametrize("function", [METADATA, EXPORT, PREPARE, IMPORT, FINISH, LENGTH])
def test_arguments_that_are_missing_or_of_another_kind(library: Library, function: str) -> None:
    call = library.module.get_function(function, query_imports=True)
    state = library.state().state
    for arguments in ((), (state,), (5, 0), (None,), (state, "0"), (state, 1.5), (state, state)):
        with pytest.raises(ValueError, match=r"expected a gemma4|sequence"):
            call(*arguments)


@pytest.mark.parametrize("function", [EXPORT, IMPORT])
def test_what_is_no_tensor_is_refused_and_the_state_goes_on(
    library: Library, checkpoint: Checkpoint, function: str
) -> None:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(5))
    if function == IMPORT:
        prepare(state, checkpoint.metadata)
    odd: tuple[object, ...] = (None, 0, True, 1.5, "tensor", [], {}, state.state)
    for tensor in odd:
        with pytest.raises(ValueError, match="page group 0: expected a tensor"):
            state(function, 0, 0, tensor)
    for index in (*odd[2:], None, -1, 1 << 62, -(1 << 63)):
        with pytest.raises(ValueError, match="page group"):
            state(function, 0, index, None)
    with pytest.raises(ValueError, match="expected a tensor"):
        state(function, 0, 0)
    if function == EXPORT:
        assert len(export(state).groups) == len(checkpoint.groups)
    else:
        restore(state, checkpoint)


def test_a_description_that_is_no_text_is_refused(library: Library) -> None:
    state = library.state()
    odd: tuple[object, ...] = (None, 5, 1.5, True, [], {}, b"{}", state.state)
    for text in odd:
        with pytest.raises(ValueError, match="description is damaged"):
            state(PREPARE, 0, text)
    state.forward(1)
