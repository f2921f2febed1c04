"""Errors of the hub in plain words; the network itself is huggingface_hub's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint import hub
from gemma4_compile.errors import CheckpointError


@pytest.fixture(autouse=True)
def hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)


def raising(error: Exception) -> Callable[..., Any]:
    def download(*_: object, **__: object) -> None:
        raise error

    return download


def bare(kind: type[Exception]) -> Exception:
    """An error of a class whose constructor wants a response."""
    error = kind.__new__(kind)
    Exception.__init__(error, "first line\nsecond line")
    return error


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (bare(hub_errors.GatedRepoError), "licence", "hf auth login"),
        (bare(hub_errors.RepositoryNotFoundError), "no model `a/b` on the hub", "private"),
        (bare(hub_errors.RevisionNotFoundError), "no revision `r`", "commit"),
        (hub_errors.LocalEntryNotFoundError("x"), "hub cannot be reached", "HF_HUB_OFFLINE"),
        (bare(hub_errors.EntryNotFoundError), r"no `config\.json`", "transformers"),
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
    assert not [pattern for pattern in given["allow_patterns"] if "bin" in pattern]


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


def test_a_generation_config_that_cannot_be_asked_for_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, the library of a model that has one would be another."""
    download = raising(hub_errors.LocalEntryNotFoundError("x"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(CheckpointError, match="hub cannot be reached"):
        hub.fetch_generation_config("a/b", "0123abcd")


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
    for ask in (hub.fetch_config, hub.fetch_generation_config, hub.fetch):
        with pytest.raises(CheckpointError, match=f"cannot be reached: .*{error.args[-1]}"):
            ask("a/b", "r")
    assert asked == ["cache"]
    (tmp_path / "model.safetensors").touch()
    assert hub.fetch("a/b", "r") == tmp_path
    assert asked == ["cache", "cache"]


def test_a_cached_file_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = str(tmp_path / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda *_, **__: pytest.fail("asked")
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: cached)
    assert hub.fetch_config("a/b", None) == tmp_path


@pytest.mark.parametrize("name", ["google/gemma-4-E2B-it", "a/b", "a-b/c.d_e"])
def test_hub_ids(name: str) -> None:
    assert hub.is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["gemma", "a/b/c", "/a", "a/", "a b/c", "", "a/b\n", "./a", "../a"]
)
def test_no_hub_ids(name: str) -> None:
    assert not hub.is_hub_id(name)
