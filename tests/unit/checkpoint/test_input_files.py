"""Digests of what a package is made from: which files, and what differs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.input_files import (
    FileDigest,
    Lock,
    checkpoint_files,
    digest_files,
    merged,
    read_inputs,
    to_json,
)
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.errors import ArtifactError, CheckpointError
from tests import models
from tests.packages import Silent

OLD, NEW = FileDigest(1, "a" * 64), FileDigest(2, "b" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = models.write_checkpoint(tmp_path / "model", models.DENSE_LIKE).path
    tensors = Checkpoint.open(path).tensors
    (path / "parts").mkdir()
    (path / "model.safetensors").rename(path / "parts" / "one.safetensors")
    weight_map = dict.fromkeys(tensors, "parts/one.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("x")
    (path / "notes.txt").write_text("not read")
    return path


def test_files_that_are_read_are_named_below_their_directory(folder: Path) -> None:
    tensors = Checkpoint.open(folder).tensors
    found = checkpoint_files(folder, tensors.values())
    expected = {"parts/one.safetensors", "model.safetensors.index.json", "tokenizer.json"}
    assert expected | {"config.json"} <= set(found)
    assert found["additional_chat_templates/tool_use.jinja"].read_text() == "x"
    assert "notes.txt" not in found
    assert set(checkpoint_files(folder, None)) <= {"config.json", "generation_config.json"}


def test_a_checkpoint_of_one_file_is_that(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    assert checkpoint_files(file, ()) == {"model.gguf": file}


def test_digests_are_of_whole_files(tmp_path: Path) -> None:
    data = bytes(range(256)) * (3 << 12) + b"end"  # blocks, and a rest
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(b"")
    found = digest_files({"x": {"a": tmp_path / "a"}, "y": {"b": tmp_path / "b"}}, Silent())
    assert found["x"]["a"] == FileDigest(len(data), hashlib.sha256(data).hexdigest())
    assert found["y"]["b"] == FileDigest(0, hashlib.sha256(b"").hexdigest())
    assert read_inputs({"inputs": to_json(found)}) == found
    with pytest.raises(CheckpointError, match="cannot read"):
        digest_files({"x": {"c": tmp_path / "c"}}, Silent())


def test_what_earlier_versions_did_not_read_is_no_difference() -> None:
    then = {"model": {"a": OLD}}
    now = {"model": {"a": OLD, "processor_config.json": NEW, "b": NEW}}
    found = Lock({}, then).of_then(now)
    assert found == {"model": {"a": OLD, "b": NEW}}
    with pytest.raises(CheckpointError, match="`b` of the model was not there"):
        Lock({}, then).check(found, whole=True)
    assert Lock({}, now).of_then(now) == now


def test_every_difference_is_named() -> None:
    lock = Lock({}, {"model": {"a": OLD, "b": OLD, "c": OLD}, "drafter": {"a": OLD}})
    lock.check({"model": {"a": OLD, "b": OLD, "c": OLD}, "drafter": {"a": OLD}}, whole=True)
    found = {"model": {"a": OLD, "b": NEW}, "adapter": {"d": NEW}}
    with pytest.raises(CheckpointError) as caught:
        lock.check(found, whole=True)
    said = str(caught.value).removeprefix("the package was made from other files: ")
    assert said.split("; ") == [
        f"`d` of the adapter was not there, found {NEW}",
        f"`a` of the drafter is missing, expected {OLD}",
        f"`b` of the model: expected {OLD}, found {NEW}",
        f"`c` of the model is missing, expected {OLD}",
    ]
    with pytest.raises(CheckpointError, match=f"`b` of the model: expected {OLD}"):
        lock.check({"model": {"b": NEW}}, whole=False)
    lock.check({"model": {"b": OLD}}, whole=False)  # a library alone reads fewer


def test_many_differences_are_counted() -> None:
    lock = Lock({}, {"model": {f"{i}": OLD for i in range(30)}})
    with pytest.raises(CheckpointError, match="and 22 more"):
        lock.check({}, whole=True)


def test_what_was_kept_is_joined_with_what_is_new() -> None:
    kept = {"model": {"a": OLD, "b": OLD}}
    assert merged(kept, {"model": {"a": NEW}}) == {"model": {"a": NEW, "b": OLD}}
    assert merged({}, kept) == kept
    assert merged(None, kept) is None, "half would pass for all"


@pytest.mark.parametrize(
    "inputs", [3, {"model": []}, {"model": {"a": {"nbytes": "1", "sha256": "x"}}}]
)
def test_damaged_digests_are_named(inputs: object) -> None:
    with pytest.raises(ArtifactError, match="field `inputs` is damaged"):
        read_inputs({"inputs": inputs})
