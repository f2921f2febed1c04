"""Packages that are not whole, or mixed from two: each file by its name, before anything runs."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.runtime import Package
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package import checked_parts, integrity
from gemma4_compile.runtime.package.integrity import Check, library_parameters


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a process that has checked nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checked_parts, "_checked_here", set())
    return tmp_path / "cache"


@pytest.fixture
def package(tiny_package: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_package, tmp_path / "package")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed, as they are."""
    names: list[str] = []
    original = integrity._hash

    def note(path: Path, nbytes: int, advance: Callable[[int], None]) -> str:
        names.append(path.name)
        return original(path, nbytes, advance)

    monkeypatch.setattr(integrity, "_hash", note)
    return names


def flip_a_bit(path: Path) -> None:
    """Change one bit, and neither size nor time."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


FILES = (
    abi.CHAT_CONFIG_FILE,
    abi.MANIFEST_FILE,
    abi.TENSOR_CACHE_FILE,
    "chat_template.jinja",
    "generation_config.json",
    "model.so",
    "params_shard_0.bin",
    "tokenizer.json",
    "tokenizer_config.json",
)


def test_all_files_of_a_package_are_in_the_list(package: Path) -> None:
    others = {abi.PROVENANCE_FILE, *abi.LICENCE_FILES}  # nothing runs these
    assert {*FILES, *others} == {path.name for path in package.iterdir()}


@pytest.mark.parametrize("name", FILES)
def test_one_bit_is_found(name: str, package: Path) -> None:
    flip_a_bit(package / name)
    with pytest.raises(ArtifactError, match=rf"`{name}` of .* is damaged: its sha256"):
        Package.open(package)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "truncated", "longer"])
def test_a_file_of_another_size_is_found_without_hashing(
    how: str, name: str, package: Path, hashed: list[str]
) -> None:
    path = package / name
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if how == "truncated" else data + b"\0")
    with pytest.raises(ArtifactError, match=name):
        Package.open(package)
    assert hashed == []


def test_files_are_hashed_once_and_again_when_one_changes(
    package: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Package.open(package)
    assert sorted(hashed) == sorted(FILES)
    Package.open(package)
    monkeypatch.setattr(checked_parts, "_checked_here", set())  # as another process
    Package.open(package)
    assert len(hashed) == len(FILES)
    Package.open(package, check=Check.ALWAYS)
    assert len(hashed) == 2 * len(FILES)
    os.utime(package / "tokenizer.json", ns=(0, 0))
    Package.open(package)
    assert len(hashed) == 3 * len(FILES) - 1, "all but the library, which is known by itself"
    os.utime(package / "model.so", ns=(0, 0))
    Package.open(package)
    assert hashed[3 * len(FILES) - 1 :] == ["model.so"]


def test_hashing_is_reported_by_bytes(package: Path) -> None:
    told: list[tuple[int, int]] = []
    Package.open(package, progress=lambda *count: told.append(count))
    total = sum((package / name).stat().st_size for name in FILES)
    done = [count for count, _ in told]
    assert {whole for _, whole in told} == {total}
    assert done == sorted(set(done))
    assert done[-1] == total
    assert max(b - a for a, b in itertools.pairwise([0, *done])) <= 1 << 20
    told.clear()
    Package.open(package, progress=lambda *count: told.append(count))
    assert told == []


def test_a_check_that_is_interrupted_proves_nothing(package: Path, hashed: list[str]) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Package.open(package, progress=interrupt)
    assert 0 < len(hashed) <= len(FILES)
    hashed.clear()
    Package.open(package)
    assert sorted(hashed) == sorted(FILES)


def test_a_cache_that_cannot_be_written_costs_time_only(
    package: Path, memory: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.write_text("in the way")
    Package.open(package)
    monkeypatch.setattr(checked_parts, "_checked_here", set())
    Package.open(package)
    assert len(hashed) == 2 * len(FILES)


def test_memory_stays_small(package: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_parts, "MOST_REMEMBERED", 5)
    folder = memory / "gemma4_compile" / "checked-packages"
    folder.mkdir(parents=True)
    for age in range(9):
        (folder / f"{age:064x}").write_text("x")
        os.utime(folder / f"{age:064x}", ns=(0, 10**9 * (9 - age)))
    Package.open(package)
    left = {path.name for path in folder.iterdir()}
    assert len(left) == 5
    assert {f"{age:064x}" for age in range(4)} < left
    assert checked_parts.note_of(package) in left


def test_a_damaged_memory_is_no_proof(package: Path, memory: Path) -> None:
    Package.open(package)
    notes = list((memory / "gemma4_compile").glob("checked-*/*"))
    assert {note.parent.name for note in notes} == {"checked-packages", "checked-libraries"}
    flip_a_bit(package / "model.so")
    checked_parts._checked_here.clear()
    for note in notes:
        note.write_bytes(b"\xff" * 64)
    with pytest.raises(ArtifactError, match=r"model\.so"):
        Package.open(package)


def test_a_template_that_the_package_does_not_list_is_refused(package: Path) -> None:
    values = read_artifact(package / abi.PROVENANCE_FILE)
    del values["files"]["chat_template.jinja"]
    (package / abi.PROVENANCE_FILE).write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=r"does not list `chat_template\.jinja`"):
        Package.open(package)


Change = Callable[[Any], None]
HOSTILE: dict[str, tuple[str, Change, str]] = {
    "absolute path": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0].update(dataPath="/etc/passwd"),
        "dataPath",
    ),
    "path that leaves the directory": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0].update(dataPath="../other/params_shard_0.bin"),
        "dataPath",
    ),
    "address": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0].update(dataPath="https://example.org/x.bin"),
        "dataPath",
    ),
    "offset outside of the shard": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0]["records"][0].update(byteOffset=1 << 60),
        "byteOffset",
    ),
    "negative offset": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0]["records"][0].update(byteOffset=-64),
        "byteOffset",
    ),
    "overflowing shape": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0]["records"][0].update(shape=[1 << 40, 1 << 40]),
        "byteOffset",
    ),
    "another order": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0]["records"].reverse(),
        "of other weights",
    ),
    "shard of another size": (
        abi.TENSOR_CACHE_FILE,
        lambda v: v["records"][0].update(nbytes=v["records"][0]["nbytes"] + 64),
        "nbytes` is damaged",
    ),
    "another parameter schema": (
        abi.MANIFEST_FILE,
        lambda v: v["weights"].update(parameter_schema_id="sha256:0"),
        "of other weights",
    ),
    "no weights": (abi.MANIFEST_FILE, lambda v: v.update(weights=[]), "of other weights"),
    "another interface": (
        abi.MANIFEST_FILE,
        lambda v: v.update(interface_id="sha256:0"),
        "another interface",
    ),
    "listed file outside of the package": (
        abi.PROVENANCE_FILE,
        lambda v: v["files"].update({"../x": {"nbytes": 1, "sha256": ""}}),
        "field `files` is damaged",
    ),
    "library outside of the package": (
        abi.PROVENANCE_FILE,
        lambda v: v.update(library="../model.so"),
        "field `library` is damaged",
    ),
    "library is no name": (
        abi.PROVENANCE_FILE,
        lambda v: v.update(library=["model.so"]),
        "field `library` is damaged",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_is_refused_whatever_is_checked(name: str, package: Path) -> None:
    file, change, message = HOSTILE[name]
    values = read_artifact(package / file)
    change(values)
    (package / file).write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=message):
        Package.open(package, check=Check.OFF)


def test_a_library_of_another_build_is_refused(package: Path) -> None:
    opened = Package.open(package)
    library = NativeLibrary(opened.library_path)
    metadata = json.loads(library.metadata())
    chat, cache = opened.chat_config, opened.tensor_cache

    def refused(change: Change, message: str) -> None:
        values = copy.deepcopy(metadata)
        change(values)
        with pytest.raises(ArtifactError, match=message):
            library_parameters(json.dumps(values), chat, cache)

    assert len(library_parameters(json.dumps(metadata), chat, cache)) == len(metadata["params"])
    refused(lambda v: v["params"][0].update(name="other"), "weight `other`")
    refused(lambda v: v["params"][0].update(shape=[1]), "the library expects")
    refused(lambda v: v["params"][0].update(dtype="float16"), "the library expects")
    refused(lambda v: v["artifact"].update(interface_id="x"), "interface is x")
    refused(lambda v: v["artifact"].update(parameter_schema_id="x"), "parameter schema is x")
    refused(lambda v: v.update(context_window_size=1), "context length is 1")
    refused(lambda v: v.update(prefill_chunk_size=1), "prefill chunk is 1")
    refused(lambda v: v.pop("artifact"), "metadata is damaged")
    with pytest.raises(ArtifactError, match="metadata is damaged"):
        library_parameters("{", chat, cache)
    with pytest.raises(ArtifactError, match="context length"):
        library_parameters(json.dumps(metadata), replace(chat, context_window_size=7), cache)


def edit_list(package: Path, name: str, nbytes: int, sha256: str = "0" * 64) -> None:
    path = package / abi.PROVENANCE_FILE
    values = json.loads(path.read_text())
    values["files"][name] = {"nbytes": nbytes, "sha256": sha256}
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("check", Check)
@pytest.mark.parametrize(
    "name", [abi.PROVENANCE_FILE, *(name for name in FILES if name != "generation_config.json")]
)
def test_a_pipe_is_no_file(name: str, check: Check, package: Path) -> None:
    """With `--check off`, too: what is read by opening, or by loading what was opened."""

    def read_all() -> None:
        opened = Package.open(package, check=check)
        Engine(opened)
        opened.load_tokenizer()
        opened.load_chat_template()
        opened.special_tokens()

    (package / name).unlink()
    os.mkfifo(package / name)
    if name != abi.PROVENANCE_FILE and check is not Check.OFF:
        edit_list(package, name, 0)
    with pytest.raises(ArtifactError, match="no regular file, but a pipe"):
        read_all()


@pytest.mark.parametrize("check", [Check.ONCE, Check.ALWAYS])
def test_an_unread_pipe_is_not_opened(check: Check, package: Path, hashed: list[str]) -> None:
    os.mkfifo(package / "extra")
    edit_list(package, "extra", 0)
    with pytest.raises(ArtifactError, match=r"`extra` .* a pipe"):
        Package.open(package, check=check)
    assert hashed == []


TERABYTES = 3 << 40


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTES)


def test_what_is_not_read_is_not_hashed(package: Path, hashed: list[str]) -> None:
    sparse(package / "extra.bin")
    edit_list(package, "extra.bin", TERABYTES)
    Package.open(package)
    assert sorted(hashed) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_too_large_is_not_hashed(
    name: str, package: Path, hashed: list[str]
) -> None:
    sparse(package / name)
    edit_list(package, name, TERABYTES)
    with pytest.raises(ArtifactError, match=name):
        Package.open(package)
    assert hashed in ([], [abi.TENSOR_CACHE_FILE])


def test_provenance_of_terabytes_is_not_read(package: Path) -> None:
    sparse(package / abi.PROVENANCE_FILE)
    with pytest.raises(ArtifactError, match="too large"):
        Package.open(package)


@pytest.mark.parametrize("consistent", [False, True])
def test_shards_are_as_large_as_their_tensors(
    consistent: bool, package: Path, hashed: list[str]
) -> None:
    path = package / abi.TENSOR_CACHE_FILE
    values = json.loads(path.read_text())
    shard = values["records"][0]
    shard["nbytes"] = TERABYTES
    if consistent:
        last = shard["records"][-1]
        last["shape"] = [(TERABYTES - last["byteOffset"]) // 4]
        last["dtype"], last["nbytes"] = "float32", TERABYTES - last["byteOffset"]
    path.write_text(json.dumps(values))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_list(package, abi.TENSOR_CACHE_FILE, path.stat().st_size, sha256)
    sparse(package / shard["dataPath"])
    edit_list(package, shard["dataPath"], TERABYTES)
    message = "too large" if consistent else "nbytes` is damaged"
    with pytest.raises(ArtifactError, match=message):
        Package.open(package)
    assert hashed == [abi.TENSOR_CACHE_FILE]


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", '"\\ud800"', '{"a": 1, "a": 2}'])
def test_json_that_is_none_is_damaged(text: str, package: Path) -> None:
    (package / abi.CHAT_CONFIG_FILE).write_text(f'{{"x": {text}}}')
    with pytest.raises(ArtifactError, match="is damaged"):
        Package.open(package, check=Check.OFF)
