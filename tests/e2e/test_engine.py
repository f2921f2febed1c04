"""The engine's own checks; what it computes is compared with transformers in tests/parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime import ContextFullError, Engine
from gemma4_compile.runtime.library.native_library import NativeLibrary


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


def test_keys_and_values_without_room_are_named(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = NativeLibrary.compiled_function

    def full(*_sizes: object) -> None:  # what targets/native/kv_state.cc throws
        raise RuntimeError("cannot allocate 512 bytes for keys and values: out of memory")

    def without_room(library: NativeLibrary, name: str) -> Any:
        return full if name == abi.CREATE_KV_CACHE else find(library, name)

    monkeypatch.setattr(NativeLibrary, "compiled_function", without_room)
    told = "no room for keys and values of 256 tokens on the cpu device: cannot allocate"
    with pytest.raises(ArtifactError, match=told) as error:
        Engine.open(tiny_package)
    assert "make the context shorter" in (error.value.hint or "")


def test_a_context_of_one_token_works(tiny_package: Path) -> None:
    engine = Engine.open(tiny_package, context_length=1)
    assert engine.prefill([2]).shape == (engine.vocab_size,)


def test_everything_can_be_popped(engine: Engine) -> None:
    engine.clear()
    expected = engine.prefill([2, 7])
    assert engine.pop(2)
    assert (engine.prefill([2, 7]) == expected).all()
    assert not engine.pop(3)


def test_tokens_are_drawn_one_after_the_other(engine: Engine) -> None:
    uniforms = [0.1, 0.9, 0.4, 0.7]
    engine.clear()
    logits, expected = engine.runner.forward(engine.sequence, [2, 7]), []
    for uniform in uniforms:
        expected.append(engine.sampling.draw(logits, 1.5, 0.99, uniform))
        logits = engine.runner.forward_one(engine.sequence, expected[-1])
    engine.clear()
    with pytest.raises(UsageError, match="no logits to draw from"):
        next(engine.sampling.sampled(1.5, 0.99, lambda: 0.5))
    engine.runner.forward(engine.sequence, [2, 7])
    left = iter(uniforms)
    drawn = engine.sampling.sampled(1.5, 0.99, lambda: next(left))
    assert [next(drawn) for _ in uniforms] == expected
    drawn.close()
    assert engine.length == 2 + len(uniforms) - 1, "the last one was not asked to stay"
    assert len(set(expected)) > 1
