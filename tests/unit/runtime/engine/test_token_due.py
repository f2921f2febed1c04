"""A pausing generation, whose tokens it chooses itself or is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.sampling.sampling import Float32Array, Sampler, SamplingOptions
from tests.scripted_engine import (
    END_OF_TURN,
    GuessingEngine,
    ScriptedEngine,
    encode,
    greedy,
    scripted_generator,
)

PROMPT = encode("one two three")
TEXT = "four five six seven"


def dues(generation: Generation) -> Iterator[TokenDue]:
    for event in generation.pausing():
        if isinstance(event, TokenDue):
            yield event


@pytest.mark.parametrize("make", [ScriptedEngine, GuessingEngine])
def test_its_own_way_and_what_it_is_given_mix(make: type[ScriptedEngine]) -> None:
    engine, tokens = make(encode(TEXT)), [*encode(TEXT), END_OF_TURN]
    generator = scripted_generator(engine)
    generation = generator.start(PROMPT, greedy)
    for place, due in enumerate(dues(generation)):
        assert due.last == (tokens[place - 1] if place else None)
        if place % 3 == 1:  # as a joint step does
            due.join()
            assert generator.is_interrupted
            assert engine.held == [*PROMPT, *tokens[: place - 1]]
            if due.last is not None:
                engine.decode(due.last)
            due.give(tokens[place])
        elif place % 3 == 2:
            due.leave_way()
            assert list(generator.held_keys) == engine.held
    assert generation.text == TEXT
    assert generation.finish_reason == "stop"
    assert engine.held == [*PROMPT, *tokens[:-1]]


def test_what_a_step_raises_is_raised_by_the_reply() -> None:
    generator = scripted_generator(ScriptedEngine(encode(TEXT)))
    waiting = dues(generator.start(PROMPT, greedy))
    due = next(waiting)
    due.join()
    due.fail(RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        next(waiting)
    assert generator.is_interrupted
    assert not generator.held_keys


def test_a_chooser_never_raises_in_a_step() -> None:
    def failing(logits: Float32Array) -> int:
        raise KeyError("grammar")

    engine = ScriptedEngine(encode(TEXT))
    generator = scripted_generator(engine)
    waiting = dues(generator.start(PROMPT, failing))
    due = next(waiting)
    due.join()
    due.give(due.chooser(engine.logits))
    with pytest.raises(KeyError, match="grammar"):
        next(waiting)
    assert not generator.is_interrupted


def test_a_sampler_is_the_chooser_itself_so_that_a_device_can_draw() -> None:
    sampler = Sampler(SamplingOptions())
    generator = scripted_generator(ScriptedEngine(encode(TEXT)))
    assert next(dues(generator.start(PROMPT, sampler))).chooser is sampler
