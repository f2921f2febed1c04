"""The engine's own checks; what it computes is compared with transformers in tests/parity."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import ContextFullError, Engine


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, context_length=40)


@pytest.mark.parametrize("wrong", [-1, 2**20, 2**31])
def test_ids_outside_the_vocabulary_are_refused(engine: Engine, wrong: int) -> None:
    engine.clear()
    with pytest.raises(UsageError, match=f"expected 0 to {engine.vocab_size - 1}, found {wrong}"):
        engine.prefill([2, wrong])
    with pytest.raises(UsageError, match="found"):
        engine.decode(wrong)
    assert engine.length == 0


def test_an_empty_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        engine.prefill([])


def test_a_prompt_that_does_not_fit_adds_nothing(engine: Engine) -> None:
    engine.clear()
    engine.prefill([2, 3])
    with pytest.raises(ContextFullError, match="holds 2 of 40 tokens, and 39 more do not fit"):
        engine.prefill([5] * 39)
    assert engine.length == 2
    engine.prefill([5] * 38)
    assert engine.length == 40


@pytest.mark.parametrize("wrong", [0, 257])
def test_a_context_longer_than_compiled_is_refused(tiny_package: Path, wrong: int) -> None:
    with pytest.raises(UsageError, match=f"expected 1 to 256, found {wrong}"):
        Engine.open(tiny_package, context_length=wrong)


def test_a_context_of_one_token_works(tiny_package: Path) -> None:
    engine = Engine.open(tiny_package, context_length=1)
    assert engine.prefill([2]).shape == (engine.vocab_size,)


def test_everything_can_be_popped(engine: Engine) -> None:
    engine.clear()
    expected = engine.prefill([2, 7])
    assert engine.pop(2)
    assert (engine.prefill([2, 7]) == expected).all()
    assert not engine.pop(3)
