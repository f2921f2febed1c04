"""Names of the hub, and how much of a repository's list is looked at."""

from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.hub_access import repository
from tests.fake_hub import serve


def test_a_repository_is_its_files_with_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"a.json": 3, "folder/b.bin": 1 << 40})
    assert repository("a/b", None) == {"a.json": 3, "folder/b.bin": 1 << 40}
