"""What `targets/native/kv_page_groups.cc` refuses, in a library for the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.unit.targets.checkpoints import (
    CHUNK,
    EXPORT,
    IMPORT,
    LAYERS,
    ROWS,
    TOTAL,
    WINDOW,
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
from tests.unit.targets.kv_library import CacheOfLayer, RotaryKind


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def checkpoint(library: Library) -> Checkpoint:
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(5))
    return export(state)


Change = Callable[[dict[str, Any]], None]


def setting(name: str, value: Any) -> Change:
    return lambda metadata: metadata.update({name: value})


def in_group(name: str, value: Any) -> Change:
    return lambda metadata: metadata["groups"][1].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("format", "other"), "checkpoint format"),
        (setting("format_version", 2), "checkpoint version: expected 1, found 2"),
        (setting("format_version", "1"), "found none"),
        (setting("package", "sha256:0"), "of another package"),
        (setting("context_length", TOTAL + 1), f"expected {TOTAL}, found {TOTAL + 1}"),
        (setting("prefill_chunk", None), "prefill chunk: expected 4, found none"),
        (setting("dtype", "float16"), "dtype: expected float32, found float16"),
        (setting("layout_hash", "0" * 16), "cache layout"),
        (setting("seq_length", -1), "sequence length"),
        (setting("seq_length", TOTAL + 1), "sequence length"),
        (setting("seq_length", WRAPPED - 1), "is damaged"),
        (setting("seq_length", 1e300), "sequence length"),
        (setting("written", WRAPPED - 1), "written positions"),
        (setting("written", WRAPPED + 1), "is damaged"),
        (setting("groups", []), "page groups"),
        (setting("groups", 5), "page groups"),
        (lambda metadata: metadata["groups"].append(metadata["groups"][0]), "page groups"),
        (lambda metadata: metadata["groups"].__setitem__(1, 7), "page group 1 is no object"),
        (in_group("group_index", 9), "page group 1 has another index"),
        (in_group("first_row", 9), "page group 1 begins"),
        (in_group("shape", [2, 1, 2, 6]), "page group 1 has another shape"),
        (in_group("shape", [2, 1]), "page group 1 has another shape"),
        (in_group("dtype", "uint8"), "page group 1 has another dtype"),
        (lambda metadata: metadata.clear(), "checkpoint format"),
    ],
)
def test_a_description_that_does_not_fit_changes_nothing(
    library: Library, checkpoint: Checkpoint, change: Change, message: str
) -> None:
    metadata = json.loads(json.dumps(checkpoint.metadata))
    change(metadata)
    state = library.state()
    write(state, 5, np.random.default_rng(8))
    before = rows_of(state)
    version = library.driver("version", state.state)
    with pytest.raises(ValueError, match=message):
        prepare(state, metadata)
    assert state.length == 5
    assert library.driver("version", state.state) == version
    for expected, found in zip(before, rows_of(state), strict=True):
        np.testing.assert_array_equal(found, expected)
    state.forward(1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        "[" * 100_000,
        '{"a":' * 100_000,
        " " * 2_000_000,
        "\0",
        "é\ud7ff",
        '{"closing": "' + "]" * 400_000 + '", "opening": ' + "[" * 400_000,
        '{"closing": "\\"' + "]" * 400_000 + '", "opening": ' + "[" * 400_000,
        "]" * 400_000 + "[" * 400_000,
        '{"\\\\": ' + "[" * 400_000,
    ],
    ids=[
        *("empty", "cut", "list", "number", "null", "deep", "deeper", "long", "zero", "unicode"),
        *("deep behind a string", "deep behind a quotation mark", "deep behind its end"),
        "deep behind a backslash",
    ],
)
def test_a_description_that_is_no_description(library: Library, text: str) -> None:
    state = library.state()
    state.forward(2)
    with pytest.raises(ValueError, match="is damaged"):
        prepare(state, text)
    assert state.length == 2
    state.forward(1)


def test_unknown_fields_are_the_clients(library: Library, checkpoint: Checkpoint) -> None:
    """It stores the shape and dtype of the logits there."""
    more = {**checkpoint.metadata, "nextLogitsShape": [1, 1, 9], "nextLogitsDtype": "float32"}
    restore(library.state(), Checkpoint(more, checkpoint.groups))


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        ({"package": "another"}, {}, "of another package: expected another, found package"),
        ({}, {"total": TOTAL - 1}, "context length"),
        ({}, {"chunk": CHUNK - 1}, "prefill chunk"),
        ({"dtype_bits": 16}, {}, "cache dtype"),
        ({"layers": (*LAYERS[:2], CacheOfLayer(1, 2, ROWS + 4, WINDOW))}, {}, "cache layout"),
        ({"layers": (*LAYERS[:2], CacheOfLayer(1, 2, ROWS + 3, WINDOW - 1))}, {}, "cache layout"),
        ({"layers": LAYERS[:2]}, {}, "cache layout"),
        ({"rotary": (RotaryKind(6, 3, 1e5),)}, {}, "cache layout"),
    ],
)
def test_another_states_checkpoint_is_refused(
    tmp_path: Path,
    checkpoint: Checkpoint,
    options: dict[str, Any],
    sizes: dict[str, int],
    message: str,
) -> None:
    state = load(tmp_path, **options).state(**sizes)
    with pytest.raises(ValueError, match=message):
        prepare(state, checkpoint.metadata)
    state.forward(1)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 9, 2, 6), "float32"),
        ((1, 10, 2, 6), "float32"),
        ((240,), "float32"),
        ((2, 10, 2, 6), "float16"),
        ((2, 10, 2, 6), "int32"),
    ],
)
def test_tensors_of_another_shape_or_type_are_refused(
    library: Library, checkpoint: Checkpoint, shape: tuple[int, ...], dtype: str
) -> None:
    assert checkpoint.metadata["groups"][0]["shape"] == [2, 10, 2, 6]
    tensor = tvm.runtime.empty(shape, dtype)
    state = library.state()
    write(state, WRAPPED, np.random.default_rng(9))
    before = rows_of(state)
    message = r"page group 0: expected a tensor of shape \(2, 10, 2, 6\), float32"
    with pytest.raises(ValueError, match=message):
        state(EXPORT, 0, 0, tensor)
    for expected, found in zip(before, rows_of(state), strict=True):
        np.testing.assert_array_equal(found, expected)
    prepare(state, checkpoint.metadata)
    with pytest.raises(ValueError, match=message):
        state(IMPORT, 0, 0, tensor)


@pytest.mark.parametrize("index", [-1, 1000, None])
def test_groups_that_do_not_exist(
    library: Library, checkpoint: Checkpoint, index: int | None
) -> None:
    state = library.state()
    restore(state, checkpoint)
    tensor = tvm.runtime.tensor(checkpoint.groups[0])
    with pytest.raises(ValueError, match="page group: expected 0 to"):
        state(EXPORT, 0, index, tensor)
    prepare(state, checkpoint.metadata)
    with pytest.raises(ValueError, match="page group: expected 0 to"):
        state(IMPORT, 0, index, tensor)
