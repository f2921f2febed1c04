"""The power of the parity tests with media: every known mistake, planted, must be caught."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.operators import base
from tests.parity.media import MediaCase, make_case, package_of_text, text_of
from tests.parity.media_mistakes import MISTAKES, MediaMistake

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _fresh_operators() -> Iterator[None]:
    """Kernels are cached by a description that a planted mistake does not change."""
    base._marked.cache_clear()
    yield
    base._marked.cache_clear()


def compiled_with(
    mistake: MediaMistake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> MediaCase:
    """Compile with the mistake; the truth is that of the model without it."""
    package_of_text(text_of(mistake.kind), folder)  # which others take as well: without it
    base._marked.cache_clear()
    with monkeypatch.context() as patched:
        mistake.patch(patched)
        return make_case(mistake.kind, folder, mistake.config)


def run(case: MediaCase) -> None:
    """What the tests of contexts with media do: pictures and a sound in chunks, then decoding."""
    given = case.context(
        (("t", 5), ("p", 4), ("t", 2), ("p", 19), ("t", 3), ("s", 9), ("t", 2), ("p", 8), ("t", 8))
    )
    count = len(given) - 4
    found = case.prefill(given, 0, count, 25)
    found |= case.decode(given, count, len(given))
    case.check(given, found)


@pytest.mark.parametrize("kind", ["dense", "e2b"])
def test_without_a_mistake_nothing_is_caught(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(compiled_with(MediaMistake(kind), tmp_path, monkeypatch))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = compiled_with(MISTAKES[name], tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(case)
