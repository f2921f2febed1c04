"""Names of the hub, and how much of a repository's list is looked at."""

from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.hub_access import is_hub_id, repository
from tests.fake_hub import serve


@pytest.mark.parametrize("name", ["google/gemma-4-E2B-it", "a/b", "a-b/c.d_e"])
def test_hub_ids(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["gemma", "a/b/c", "/a", "a/", "a b/c", "", "a/b\n", "./a", "../a"]
)
def test_no_hub_ids(name: str) -> None:
    assert not is_hub_id(name)


def test_a_repository_is_its_files_with_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"a.json": 3, "folder/b.bin": 1 << 40})
    assert repository("a/b", None) == {"a.json": 3, "folder/b.bin": 1 << 40}
