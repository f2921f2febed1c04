"""What huggingface_hub returns and raises, without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors
from huggingface_hub.hf_api import RepoFile

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL: Mapping[str, int] = {"config.json": 1, "tokenizer.json": 1, "model.safetensors": 1 << 40}


def serve(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, int] = SMALL) -> None:
    """Let the hub list these files, with their bytes."""
    entries = [
        RepoFile(  # type: ignore[no-untyped-call]
            path=name, size=size, oid=name
        )
        for name, size in files.items()
    ]
    monkeypatch.setattr(huggingface_hub, "list_repo_tree", lambda *_, **__: iter(entries))


def raising(error: Exception) -> Callable[..., Any]:
    def download(*_: object, **__: object) -> None:
        raise error

    return download


def bare(kind: type[Exception]) -> Exception:
    """An error of a class whose constructor wants a response."""
    error = kind.__new__(kind)
    Exception.__init__(error, "first line\nsecond line")
    return error


def answered(status: int, said: str = "") -> Exception:
    """An error of huggingface_hub that comes from an answer."""
    error = bare(hub_errors.HfHubHTTPError)
    vars(error).update(response=SimpleNamespace(status_code=status), server_message=said)
    return error
