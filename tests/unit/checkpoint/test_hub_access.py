"""Names of the hub, and how much of a repository's list is looked at."""

from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.hub_access import XET_BUFFERS, bound_buffers, repository
from tests.fake_hub import serve


def test_a_repository_is_its_files_with_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"a.json": 3, "folder/b.bin": 1 << 40})
    assert repository("a/b", None) == {"a.json": 3, "folder/b.bin": 1 << 40}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (64_000_000, 64_000_000, 128_000_000)),
        ({list(XET_BUFFERS)[2]: "1gb"}, (64_000_000, 64_000_000, 1_000_000_000)),
        ({"HF_XET_HIGH_PERFORMANCE": "1"}, None),
    ],
)
def test_buffers_of_a_download_are_bounded_unless_somebody_says_otherwise(
    given: dict[str, str], expected: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `hf_xet` makes of the variables: a name that it does not know bounds nothing."""
    hf_xet = pytest.importorskip("hf_xet")
    for name in (*XET_BUFFERS, "HF_XET_HIGH_PERFORMANCE", "HF_XET_HP"):
        monkeypatch.setenv(name, "")  # so that what is set here ends with the test
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    bound_buffers()
    values = dict(hf_xet.XetConfig().items())
    parts = ("size", "perfile_size", "limit")
    found = tuple(values[f"reconstruction.download_buffer_{part}"] for part in parts)
    if expected is None:
        assert found[0] > 64_000_000
    else:
        assert found == expected
