"""The list of a package's libraries: read as written, damage named; old packages have one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.libraries import (
    MAX_LIBRARIES,
    NATIVE,
    WORDS,
    LibraryRecord,
    library_file,
)

NEEDS = {
    "features": ["subgroups"],
    "language_features": ["packed_4x8_integer_dot_product"],
    "subgroup_size": 32,
    "max_binding_bytes": 1 << 27,
}
MAIN = LibraryRecord(
    *("model.wasm", "default", "webgpu", "webgpu", "default", "float", WORDS, {"features": []})
)
SECOND = LibraryRecord(
    *("model-h200.wasm", "h200", "webgpu", "webgpu", "h200", "int8", NATIVE, NEEDS), alone=True
)
BUILD = {
    "recipe": "q4f16",
    "target": "webgpu",
    "limits": "subgroups",
    "activations": "int8",
    "requirements": NEEDS,
}
FILES = {name: (3, "ab" * 32) for name in ("model.wasm", "model-h200.wasm", "tokenizer.json")}


def _read(libraries: object = None, **others: object) -> Provenance:
    made = Provenance("model.wasm", BUILD, FILES, (MAIN, SECOND)).to_json() | others
    made["libraries"] = made["libraries"] if libraries is None else libraries
    return Provenance.from_json(json.loads(json.dumps(made)))


def test_what_is_written_is_read() -> None:
    assert _read().libraries == (MAIN, SECOND)
    second = _read().libraries[1]
    assert second.features == ("subgroups",)
    assert second.language_features == ("packed_4x8_integer_dot_product",)
    assert second.subgroup_size == 32
    assert second.amount("max_storage_buffers") == 0, "an earlier version did not write it"


def test_the_main_one_comes_first() -> None:
    assert _read([SECOND.to_json(), MAIN.to_json()]).libraries == (MAIN, SECOND)


def test_files_are_named_by_library() -> None:
    assert library_file("h200", ".wasm", main=False) == SECOND.file
    assert library_file("default", ".wasm", main=True) == MAIN.file


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ({}, ("subgroups", "webgpu", "webgpu", "subgroups", "int8", NATIVE)),
        ({"recipe": "q4f32"}, ("subgroups", "webgpu", "webgpu", "subgroups", "int8", None)),
        (
            {"target": "metal", "limits": "default"},
            ("metal", "metal", "metal", "default", "int8", NATIVE),
        ),
        (
            {"target": "strange", "device": "cpu", "limits": 3},
            ("strange", "strange", "cpu", "default", "int8", NATIVE),
        ),
    ],
)
def test_a_package_without_the_list_has_one(
    build: dict[str, object], expected: tuple[object, ...]
) -> None:
    made = Provenance("model.wasm", BUILD | build, FILES).to_json()
    (only,) = Provenance.from_json(made).libraries
    assert only.file == "model.wasm"
    said = (only.name, only.target, only.device, only.limits, only.activations, only.float16)
    assert (said, only.requirements) == (expected, NEEDS)


def test_a_package_without_a_library_has_none() -> None:
    assert Provenance.from_json(Provenance(None, BUILD, FILES).to_json()).libraries == ()


Change = Callable[[list[dict[str, Any]]], object]
DAMAGE: dict[str, Change] = {
    "text": lambda entries: "all",
    "none for a library": lambda entries: [],
    "too many": lambda entries: entries * MAX_LIBRARIES,
    "entry": lambda entries: [*entries, 3],
    "twice": lambda entries: [*entries, entries[1]],
    "name twice": lambda entries: [entries[0], entries[1] | {"name": "default"}],
    "no main": lambda entries: entries[1:],
    "file not listed": lambda entries: [entries[0], entries[1] | {"file": "model-x.wasm"}],
    "file elsewhere": lambda entries: [entries[0], entries[1] | {"file": "../model.wasm"}],
    "long name": lambda entries: [entries[0], entries[1] | {"name": "n" * 65}],
    "name with a newline": lambda entries: [entries[0], entries[1] | {"name": "h200\n"}],
    "no target": lambda entries: [entries[0], entries[1] | {"target": None}],
    "float16": lambda entries: [entries[0], entries[1] | {"float16": "half"}],
    "alone": lambda entries: [entries[0], entries[1] | {"alone": 1}],
    "no requirements": lambda entries: [entries[0], entries[1] | {"requirements": None}],
    "features": lambda entries: [_with_needs(entries, features="subgroups")],
    "feature": lambda entries: [_with_needs(entries, features=[3])],
    "many features": lambda entries: [_with_needs(entries, language_features=["a"] * 33)],
    "negative": lambda entries: [_with_needs(entries, max_binding_bytes=-1)],
    "boolean": lambda entries: [_with_needs(entries, subgroup_size=True)],
    "infinite": lambda entries: [_with_needs(entries, weights_bytes=1e400)],
    "endless": lambda entries: [_with_needs(entries, max_storage_buffers=1 << 60)],
}


def _with_needs(entries: list[dict[str, Any]], **needs: object) -> dict[str, object]:
    return entries[0] | {"requirements": {**NEEDS, **needs}}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_named(change: Change) -> None:
    entries = [MAIN.to_json(), SECOND.to_json()]
    with pytest.raises(ArtifactError, match=r"`provenance\.json`: field `\w+` is damaged"):
        _read(change(entries))


def test_an_entry_that_is_no_object_is_one_of_the_list() -> None:
    with pytest.raises(ArtifactError, match="field `libraries` is damaged"):
        _read([MAIN.to_json(), None])


@pytest.mark.parametrize("needs", [None, "all", ["subgroups"]])
def test_an_old_build_without_requirements_is_read(needs: object) -> None:
    made = Provenance("model.wasm", BUILD | {"requirements": needs}, FILES).to_json()
    assert Provenance.from_json(made).libraries[0].requirements == {}
