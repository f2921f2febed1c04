"""A hub that serves nothing for now, or too much: the cache, and what is not downloaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile

from gemma4_compile.checkpoint import hub
from gemma4_compile.errors import CheckpointError
from tests.fake_hub import COMMIT, SMALL, answered, bare, raising, serve


@pytest.fixture(autouse=True)
def hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # tests run with it set
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)
    serve(monkeypatch)


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_hub_that_serves_nothing_leaves_a_whole_cache(
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def known(_: str, file: str, **__: object) -> str | None:
        return str(tmp_path / file) if (tmp_path / file).exists() else None

    snapshot = {"local_files_only": False}

    def download(_: str, *, local_files_only: bool, **__: object) -> str:
        snapshot["local_files_only"] = local_files_only
        return str(tmp_path)

    for name in ("config.json", "model.safetensors", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", known)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", raising(answered(status)))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.fetch_config("a/b", None) == tmp_path
    assert f"answered {status}" in capsys.readouterr().err
    assert hub.fetch("a/b", None) == tmp_path
    note = capsys.readouterr().err
    assert f"answered {status}" in note
    assert "no `generation_config.json` in it" in note
    assert snapshot["local_files_only"]
    assert hub.fetch("a/b", COMMIT) == tmp_path
    assert "generation_config.json" in capsys.readouterr().err
    (tmp_path / "generation_config.json").write_text("{}")
    assert hub.fetch("a/b", COMMIT) == tmp_path
    assert not capsys.readouterr().err  # the same files as on the hub
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="`a/b`"):
        hub.fetch("a/b", None)


def test_a_cache_without_a_shard_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    (tmp_path / "1.safetensors").touch()
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda _, file, **__: str(tmp_path / file) if (tmp_path / file).exists() else None,
    )
    refused = raising(ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refused)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(CheckpointError, match="not in the local cache"):
        hub.fetch("a/b", None)
    (tmp_path / "2.safetensors").touch()
    assert hub.fetch("a/b", None) == tmp_path


def test_a_file_that_is_there_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = bare(hub_errors.RemoteEntryNotFoundError)
    url = "https://huggingface.co/a/b/resolve/0123/additional_chat_templates/my%20own.jinja?x=1"
    vars(error).update(response=SimpleNamespace(status_code=404, url=url))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(error))
    with pytest.raises(
        CheckpointError, match=r"has no `additional_chat_templates/my own\.jinja` any more"
    ) as caught:
        hub.fetch("a/b", None)
    assert "give a commit as its revision" in str(caught.value.hint)


def test_a_repository_of_a_million_files_is_listed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[int] = []

    def endless(*_: object, **__: object) -> Iterator[RepoFile]:
        for number in range(1_000_000):
            listed.append(number)
            yield RepoFile(  # type: ignore[no-untyped-call]
                path=f"{number}/model.safetensors", size=1, oid="x"
            )

    monkeypatch.setattr(huggingface_hub, "list_repo_tree", endless)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match="too many files"):
        hub.fetch("a/b", None)
    assert len(listed) == 20_000


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"additional_chat_templates/a.jinja": 200 << 20}, "too large"),
        ({f"additional_chat_templates/{n}.jinja": 1 for n in range(65)}, "too many chat templates"),
        ({"special_tokens_map.json": 200 << 20}, "too large"),
    ],
)
def test_templates_of_a_repository_have_bounds(
    files: Mapping[str, int], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, {**SMALL, **files})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match=what):
        hub.fetch("a/b", None)


@pytest.mark.parametrize(
    ("shards", "what"),
    [
        ([f"{number}.safetensors" for number in range(10_000)], "names 10000 shards"),
        (["../../../etc/passwd.safetensors"], "not a plain file name"),
        (["a/../../b.safetensors"], "not a plain file name"),
        (["*.safetensors"], "not a plain file name"),
    ],
)
def test_shards_of_a_repository_have_bounds(
    shards: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {str(n): name for n, name in enumerate(shards)}}))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(index))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    serve(monkeypatch, {"config.json": 1, index.name: 1, **dict.fromkeys(shards, 1)})
    with pytest.raises(CheckpointError, match=what):
        hub.fetch("a/b", None)
