"""The parity tests' power: every known mistake, planted into the compiler, must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from gemma4_compile.operators import base
from gemma4_compile.runtime import Engine
from tests import hf, models, packages, tolerances
from tests.parity.conftest import Case
from tests.parity.mistakes import MISTAKES, Mistake

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _fresh_operators() -> Iterator[None]:
    """Kernels are cached by a description that a planted mistake does not change."""
    base._marked.cache_clear()
    yield
    base._marked.cache_clear()


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The package of a kind without a mistake."""

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        checkpoint = models.write_checkpoint(folder / "checkpoint", models.KINDS[kind])
        return packages.compile_package(checkpoint.path, "f32", folder / "package", optimised=False)

    return make


def compiled_with(
    mistake: Mistake,
    right: Callable[[str], Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    """Compile with the mistake; the truth is that of the model without it."""
    text = models.KINDS[mistake.kind]
    weights = models.random_weights(text, dtype=mistake.dtype)
    wrong = models.write_checkpoint(
        folder / "checkpoint",
        {**text, **mistake.config},
        dtype=mistake.dtype,
        weights=mistake.spoil(weights),
    )
    with monkeypatch.context() as patched:
        mistake.patch(patched)
        package = packages.compile_package(
            *(wrong.path, "f32", folder / "package"),
            library_of=right(mistake.kind) if mistake.is_of_weights else None,
            optimised=False,
        )
    return Case(
        package=package,
        engine=Engine.open(package),
        model=hf.load(text, weights, mistake.dtype),
        window=text["sliding_window"],
        tolerance=tolerances.LOGITS_F32,
        routing_gap=tolerances.ROUTING_GAPS["f32"],
    )


def run(case: Case) -> None:
    """What the tests of f32 packages do: a prompt of several windows in chunks, then decoding."""
    count = 3 * case.window + 5
    ids = case.prompt(count + 4)
    found = case.prefill(ids, 0, count, 7)
    found |= case.decode(ids, count, len(ids))
    case.check(ids, found)


def test_without_a_mistake_nothing_is_caught(
    right: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(compiled_with(Mistake(), right, tmp_path, monkeypatch))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_caught(
    name: str, right: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = compiled_with(MISTAKES[name], right, tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        run(case)
