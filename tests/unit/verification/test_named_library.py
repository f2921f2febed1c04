"""A package is verified as it would be with the named library as its main one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.libraries import LibraryRecord, read_libraries
from gemma4_compile.targets.spec import NATIVE, WORDS
from gemma4_compile.verification.build_fields import reads_words
from gemma4_compile.verification.named_library import with_main

PACKAGE = Path("my-package")


def record(name: str, **fields: Any) -> LibraryRecord:
    values = {
        "file": f"model-{name}.wasm",
        "target": "webgpu",
        "device": "webgpu",
        "limits": "default",
        "activations": "float",
        "float16": NATIVE,
        "requirements": {"features": [name]},
    }
    return LibraryRecord(name=name, **(values | fields))


WORD_FORM = record("default", file="model.wasm", float16=WORDS, requirements={"features": []})
INT8 = record("h200", limits="h200", activations="int8")
CPU = record("cpu", file="model-cpu.so", target="cpu", device="cpu", float16=None)
BUILD = {
    "recipe": "q4f16",
    "target": "webgpu",
    "limits": "default",
    "activations": "float",
    "float16": WORDS,
    "requirements": {"features": []},
}


def package(*libraries: LibraryRecord) -> Provenance:
    files = {one.file: (1, "0") for one in libraries}
    return Provenance(libraries[0].file if libraries else None, BUILD, files, libraries)


def test_the_build_is_the_named_library_s() -> None:
    provenance = package(WORD_FORM, INT8, CPU)
    found = with_main(PACKAGE, provenance, "h200")
    assert found.library == INT8.file
    assert found.libraries == (INT8, WORD_FORM, CPU)
    assert found.files == provenance.files
    assert not reads_words(found.build)
    assert {**found.build} == {
        "recipe": "q4f16",
        "target": "webgpu",
        "limits": "h200",
        "activations": "int8",
        "requirements": {"features": ["h200"]},
    }
    again = with_main(PACKAGE, found, "default")
    assert again.build == BUILD
    assert with_main(PACKAGE, provenance, "cpu").build["target"] == "cpu"


def test_the_main_library_is_what_the_package_says() -> None:
    provenance = package(WORD_FORM, INT8)
    assert with_main(PACKAGE, provenance, None) is provenance
    assert with_main(PACKAGE, provenance, "default") is provenance


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no library `f16` \(it has: default, h200\)"):
        with_main(PACKAGE, package(WORD_FORM, INT8), "f16")
    with pytest.raises(UsageError, match=r"it has: none") as caught:
        with_main(PACKAGE, package(), "f16")
    assert "compile" in str(caught.value.hint)


def test_the_only_library_of_an_earlier_version_has_its_limits_name() -> None:
    libraries = read_libraries(None, "model.wasm", BUILD, {"model.wasm": (1, "0")})
    provenance = Provenance("model.wasm", BUILD, {"model.wasm": (1, "0")}, libraries)
    assert with_main(PACKAGE, provenance, "default") is provenance
