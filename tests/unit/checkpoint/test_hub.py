"""Errors of the hub in plain words; the network itself is huggingface_hub's."""

from __future__ import annotations

import fnmatch
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint import hub
from gemma4_compile.errors import CheckpointError
from tests.fake_hub import COMMIT, SMALL, answered, bare, raising, serve


@pytest.fixture(autouse=True)
def hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)
    serve(monkeypatch)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (bare(hub_errors.GatedRepoError), "licence", "hf auth login"),
        (bare(hub_errors.RepositoryNotFoundError), "no model `a/b` on the hub", "private"),
        (bare(hub_errors.RevisionNotFoundError), "no revision `r`", "commit"),
        (hub_errors.LocalEntryNotFoundError("x"), "hub cannot be reached", "HF_HUB_OFFLINE"),
        (hub_errors.HFValidationError("bad name"), "failed: bad name", "again"),
        (ConnectionResetError("reset\nby peer"), "failed: reset", "again"),
        (OSError(28, "No space left on device"), "No space left", "again"),
    ],
)
def test_errors_have_a_hint(
    error: Exception, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(error))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(error))
    for fetch in (hub.fetch_config, hub.fetch):
        with pytest.raises(CheckpointError, match=message) as caught:
            fetch("a/b", "r")
        assert hint in str(caught.value.hint)
        assert "\n" not in str(caught.value)


def test_a_repository_without_a_config_is_told_what_to_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = raising(bare(hub_errors.EntryNotFoundError))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", missing)
    with pytest.raises(CheckpointError, match=r"`config\.json` is missing from `a/b`") as caught:
        hub.fetch_config("a/b", "r")
    assert "add config.json" in str(caught.value.hint)


def test_a_hub_with_trouble_of_its_own_leaves_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(huggingface_hub, "list_repo_tree", raising(answered(503)))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert hub.fetch("a/b", "r") == tmp_path
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"trouble of its own \(503\)"):
        hub.fetch("a/b", "r")


def test_only_needed_files_are_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    accepted = inspect.signature(huggingface_hub.snapshot_download).parameters

    def download(model: str, **options: Any) -> str:
        given.update(options, model=model)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch("a/b", None) == tmp_path
    assert set(given) - {"model"} <= set(accepted)
    assert "config.json" in given["allow_patterns"]
    assert "model.safetensors" in given["allow_patterns"]
    assert not [pattern for pattern in given["allow_patterns"] if "bin" in pattern]
    assert "additional_chat_templates/*.jinja" in given["allow_patterns"]


def test_a_model_may_have_no_generation_config(monkeypatch: pytest.MonkeyPatch) -> None:
    download = raising(bare(hub_errors.RemoteEntryNotFoundError))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub.fetch_generation_config("a/b", "0123abcd")


def test_what_the_hub_is_known_not_to_have_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = huggingface_hub._CACHED_NO_EXIST
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: none)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    hub.fetch_generation_config("a/b", "0123abcd")


def test_a_generation_config_that_cannot_be_asked_for_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, the library of a model that has one would be another: that is said."""
    download = raising(hub_errors.LocalEntryNotFoundError("x"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub.fetch_generation_config("a/b", "0123abcd")
    assert "suppress_tokens" in capsys.readouterr().err


class ReadTimeout(Exception):
    """As the HTTP libraries call it when a server that was found does not answer yet."""


@pytest.mark.parametrize(
    ("error", "asks"),
    [
        (ConnectionRefusedError(111, "Connection refused"), False),
        (TimeoutError("timed out"), False),
        (ReadTimeout("slow"), True),
        (bare(hub_errors.HfHubHTTPError), True),
        (bare(hub_errors.GatedRepoError), True),
        (hub_errors.FileMetadataError("no commit"), True),
    ],
)
def test_a_hub_that_cannot_be_reached_is_not_asked_again(
    error: Exception, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(model: str, *file: str, local_files_only: bool = False, **_: object) -> str:
        asked.append("cache" if local_files_only else "hub")
        return str(tmp_path.joinpath(*file))

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", raising(error))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    if asks:
        assert hub.fetch_config("a/b", None) == tmp_path
        assert hub.fetch("a/b", None) == tmp_path
        assert asked == ["hub", "hub"]
        return
    for ask in (hub.fetch_config, hub.fetch):
        with pytest.raises(CheckpointError, match=f"cannot be reached: .*{error.args[-1]}"):
            ask("a/b", "r")
    assert asked == ["cache"]
    (tmp_path / "model.safetensors").touch()
    assert hub.fetch("a/b", "r") == tmp_path
    assert asked == ["cache", "cache"]


def test_a_cached_file_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = str(tmp_path / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    refused = raising(ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refused)
    assert hub.fetch_config("a/b", None) == tmp_path
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda *_, **__: pytest.fail("asked")
    )
    assert hub.fetch_config("a/b", COMMIT) == tmp_path


def test_a_cached_branch_is_asked_for_the_size_that_it_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = str(tmp_path / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
    found = SimpleNamespace(size=200 << 20)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: found)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match="is too large"):
        hub.fetch_config("a/b", None)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (answered(401, "Invalid credentials"), "token that is set, .*Invalid", "hf auth login"),
        (answered(403, "fine-grained"), "may not read `a/b`: fine-grained", "settings/tokens"),
        (answered(429, "rate\nlimit"), "no more requests for now.*: rate$", "later"),
    ],
)
def test_answers_that_do_not_change_are_told_at_once(
    error: Exception, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", raising(error))
    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, lambda *_, **__: pytest.fail("asked again"))
    for fetch in (hub.fetch_config, hub.fetch):
        with pytest.raises(CheckpointError, match=message) as caught:
            fetch("a/b", None)
        assert hint in str(caught.value.hint)


def test_a_config_of_200_mb_is_refused_before_it_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(size=200 << 20)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: found)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    for fetch in (hub.fetch_config, hub.fetch_generation_config):
        with pytest.raises(CheckpointError, match=r"json` of `a/b` is too large: 209715200 bytes"):
            fetch("a/b", "0123abcd")


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
             "chat_template.jinja"],
)  # fmt: skip
def test_other_files_of_200_mb_are_not_downloaded_either(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, {**SMALL, name: 200 << 20})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match=f"`{name}` of `a/b` is too large"):
        hub.fetch("a/b", "0123abcd")


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("model-Q4_K_M.gguf", "GGUF"),
        ("onnx/model.onnx", "ONNX"),
        ("pytorch_model.bin", "only safetensors"),
        ("bf16/model.safetensors", "its folder `bf16` holds one"),
        ("adapter_model.safetensors", "adapter"),
    ],
)
def test_a_repository_is_called_by_its_kind_before_it_is_downloaded(
    file: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    serve(monkeypatch, {"config.json": 1, file: 1})
    with pytest.raises(CheckpointError, match=what):
        hub.fetch("a/b", "0123abcd")
    download = raising(bare(hub_errors.RemoteEntryNotFoundError))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    serve(monkeypatch, {file: 1, "bf16/config.json": 1} if "bf16" in file else {file: 1})
    with pytest.raises(CheckpointError, match=what):
        hub.fetch_config("a/b", "0123abcd")


def record_download(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """The options of the snapshots that are asked for from now on, each of which is `folder`."""
    given: dict[str, Any] = {}

    def download(model: str, **options: Any) -> str:
        given.update(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return given


def test_poolings_are_those_that_the_modules_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = record_download(monkeypatch, tmp_path)
    modules = tmp_path / "modules.json"
    paths = ("pool[ing]", "../other", "nowhere")
    modules.write_text(json.dumps([{"type": "a.Pooling", "path": path} for path in paths]))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(modules))
    name = "pool[ing]/config.json"
    serve(monkeypatch, {**SMALL, "modules.json": 1, name: 1})
    hub.fetch("a/b", None)
    found = [one for one in given["allow_patterns"] if one not in hub.NEEDED_FILES]
    assert found[0] == "model.safetensors"
    assert [fnmatch.fnmatchcase(name, one) for one in found[1:]] == [True]
    serve(monkeypatch, {**SMALL, "modules.json": 1, name: 200 << 20})
    with pytest.raises(CheckpointError, match="is too large"):
        hub.fetch("a/b", None)


def test_shards_are_those_that_the_index_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = record_download(monkeypatch, tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    places = {"a": "part one/w_1.safetensors", "b": "other.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(index))
    listed = {"config.json": 1, index.name: 1, **dict.fromkeys(places.values(), 1), "x.gguf": 1}
    serve(monkeypatch, {**listed, "model-fp16.safetensors": 1})
    hub.fetch("a/b", None)
    weights = [name for name in given["allow_patterns"] if name.endswith(".safetensors")]
    assert sorted(weights) == sorted(places.values())
    serve(monkeypatch, {name: 1 for name in listed if name != "other.safetensors"})
    with pytest.raises(CheckpointError, match=r"has no `other\.safetensors`, which its"):
        hub.fetch("a/b", None)
