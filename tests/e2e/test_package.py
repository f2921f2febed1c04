"""Packages that are damaged or not for this machine: an error that names the file or the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.files import finish
from gemma4_compile.runtime import Chat, Engine, Package
from gemma4_compile.runtime.package import conversation_check
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.packages import list_files

Edit = Callable[[Path], object]
Json = dict[str, Any]


def edit_json(name: str, change: Callable[[Json], object]) -> Edit:
    def edit(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        change(values)
        (folder / name).write_text(json.dumps(values))

    return edit


def first_record(values: Json) -> Json:
    record: Json = values["records"][0]["records"][0]
    return record


TRAP = {"type": "Replace", "pattern": {"Regex": "\\w?" * 150 + "(?<=[0-9])"}, "content": ""}
DAMAGE: dict[str, tuple[Edit, str]] = {
    "no provenance": (
        lambda folder: (folder / "provenance.json").unlink(),
        "`provenance.json` is missing",
    ),
    "another package's schema": (
        edit_json("provenance.json", lambda values: values.update(schema_version=99)),
        "schema version 99, expected 1",
    ),
    "a browser package": (
        edit_json(
            "provenance.json",
            lambda values: values.update(
                library="model.wasm",
                libraries=[
                    {**values["libraries"][0], "file": "model.wasm", "target": "webgpu"}
                    | {"device": "webgpu"}
                ],
                files={"model.wasm": {"nbytes": 1, "sha256": ""}},
            ),
        ),
        "no native library",
    ),
    "no library file": (lambda folder: (folder / "model.so").unlink(), "model library"),
    "chat config cut short": (
        lambda folder: (folder / "mlc-chat-config.json").write_text('{"vocab_size": 1'),
        "mlc-chat-config.json` is damaged",
    ),
    "stop tokens that are no list": (
        edit_json(
            "mlc-chat-config.json",
            lambda values: values["conv_template"].update(stop_token_ids=1),
        ),
        "stop_token_ids",
    ),
    "missing shard": (
        lambda folder: (folder / "params_shard_0.bin").unlink(),
        "params_shard_0.bin",
    ),
    "truncated shard": (
        lambda folder: (folder / "params_shard_0.bin").write_bytes(b"\0" * 1000),
        "expected [0-9]+ bytes, found 1000",
    ),
    "empty shard": (
        lambda folder: (folder / "params_shard_0.bin").write_bytes(b""),
        "params_shard_0.bin",
    ),
    "weight of another name": (
        edit_json("tensor-cache.json", lambda values: first_record(values).update(name="other")),
        "of other weights than `tensor-cache.json`",
    ),
    "shard outside the package": (
        edit_json(
            "tensor-cache.json", lambda values: values["records"][0].update(dataPath="../x.bin")
        ),
        "dataPath",
    ),
    "damaged tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "cannot load the tokenizer",
    ),
    "a tokenizer that panics": (
        edit_json("tokenizer.json", lambda values: values.update(decoder=TRAP)),
        "cannot hold a short conversation: PanicException",
    ),
    "a template that fails": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}"),
        "cannot hold a short conversation: .* ZeroDivisionError",
    ),
    "an empty template": (
        lambda folder: (folder / "chat_template.jinja").write_text(""),
        "makes no text of this conversation",
    ),
    "a template that is not UTF-8": (
        lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"),
        "cannot read the chat template",
    ),
    "a temperature beyond numbers": (
        edit_json("mlc-chat-config.json", lambda values: values.update(temperature=10**400)),
        "temperature: expected a number from 0 to 100, found an integer of 1329 bits|401 digits",
    ),
    "half a top_k": (
        edit_json("mlc-chat-config.json", lambda values: values.update(top_k=0.5)),
        "top_k: expected an integer",
    ),
    "no chat template": (
        lambda folder: (folder / "chat_template.jinja").unlink(),
        "no chat template",
    ),
}


def open_unchecked(folder: Path) -> Chat:
    package = Package.open(folder, check=Check.OFF)
    return Chat(Engine(package), package)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tiny_package: Path, tmp_path: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    folder = tmp_path / "package"
    shutil.copytree(tiny_package, folder)
    damage(folder)
    with pytest.raises(ArtifactError):  # a hash says so, if nothing before it does
        Chat.open(folder)
    with pytest.raises(ArtifactError, match=message):
        open_unchecked(folder)


@pytest.mark.parametrize("missing", ["library", "weights"])
def test_a_partial_build_names_what_is_missing(missing: str, tmp_path: Path) -> None:
    name = "params_shard_0.bin" if missing == "library" else "model.so"
    for file in (name, abi.TENSOR_CACHE_FILE) if missing == "library" else (name,):
        (tmp_path / file).write_text("{}")
    finish(tmp_path, None if missing == "library" else name, {"target": "cpu"})
    with pytest.raises(ArtifactError, match=f"a partial build, without {missing}") as caught:
        Package.open(tmp_path)
    assert f"--only {missing} and -o {tmp_path}" in str(caught.value.hint)


def test_weights_are_mapped_at_addresses_that_kernels_can_take(tiny_package: Path) -> None:
    for name, array in Package.open(tiny_package).map_weights():
        assert array.ctypes.data % 64 == 0, name


def test_template_may_be_in_the_tokenizer_config(tiny_package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    shutil.copytree(tiny_package, folder)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    edit_json("tokenizer_config.json", lambda values: values.update(chat_template=template))(folder)
    list_files(folder)
    assert Package.open(folder).load_chat_template() == template


def test_sampling_defaults_are_the_checkpoints(tiny_package: Path) -> None:
    said = json.loads(shipped_file("generation_config.json"))
    defaults = Package.open(tiny_package).sampling_defaults()
    for name in ("temperature", "top_k", "top_p"):
        assert getattr(defaults, name) == said[name]


def test_running_does_not_change_the_weights_on_disk(tiny_package: Path) -> None:
    shard = tiny_package / "params_shard_0.bin"
    before = shard.read_bytes()
    logits = Engine.open(tiny_package).prefill([2, 3, 4])
    assert np.isfinite(logits).all()
    assert shard.read_bytes() == before


def test_a_tiny_temperature_and_an_empty_top_p_set_are_greedy(
    tiny_package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    shutil.copytree(tiny_package, folder)
    edit = {"temperature": 5e-324, "top_p": 0}
    edit_json("mlc-chat-config.json", lambda values: values.update(edit))(folder)
    defaults = Package.open(folder, check=Check.OFF).sampling_defaults()
    assert defaults.temperature == 0
    assert 0 < defaults.top_p < 1e-6


def test_a_conversation_is_tried_once(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(conversation_check, "_tried_here", set())
    tried: list[object] = []
    monkeypatch.setattr(conversation_check, "try_conversation", lambda *_: tried.append(1))
    for _ in range(2):
        Package.open(tiny_package)
    conversation_check._tried_here.clear()  # as in another process
    Package.open(tiny_package)
    assert len(tried) == 1
    folder = tmp_path / "package"
    shutil.copytree(tiny_package, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    Package.open(folder, check=Check.OFF)
    assert len(tried) == 2
