from __future__ import annotations

from random import Random

import numpy as np
import pytest

from gemma4_compile.model_spec.audio import sizes
from tools.training.tiny.question import held_out
from tools.training.tiny.sounds import (
    CONTENTS,
    MOST_BEEPS,
    STATES,
    Event,
    Sound,
    described,
    draw_sound,
    question,
    row_states,
    rows_of,
)


def sound(content: str, *events: Event) -> Sound:
    return Sound(content, events, 2.0, 0.5, 0.0, 0.01, 0.0)


HIGH, LOW = Event(0.2, 0.3, 1500, 1500), Event(1.0, 0.3, 220, 220)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("nothing", "Nothing."),
        ("1 low", "A low beep."),
        ("3 high", "Three high beeps."),
        ("up", "A tone that goes up."),
        ("low high", "A low beep, then a high beep."),
    ],
)
def test_contents_are_described(content: str, text: str) -> None:
    assert described(sound(content)) == text


def test_answers_are_right() -> None:
    both = sound("high low", HIGH, LOW)
    rng = Random(0)
    found = {text: answer for _, text, answer in (question(rng, both) for _ in range(2000))}
    assert found["How many beeps are there?"] == "Two."
    assert found["Is there a low beep?"] == "Yes."
    one = sound("1 high", HIGH)
    found = {text: answer for _, text, answer in (question(rng, one) for _ in range(2000))}
    assert found["Is the beep high or low?"] == "High."
    assert found["Is there a low beep?"] == "No."
    rising = sound("up", Event(0.1, 1.0, 300, 900))
    found = {text: answer for _, text, answer in (question(rng, rising) for _ in range(2000))}
    assert found["Does the tone go up or down?"] == "Up."
    assert found["Count the beeps."] == "None."


@pytest.mark.parametrize("samples", [161, 162, 641, 801, 16_000, 16_001, 16_161, 20_001])
def test_rows_are_those_of_the_library(samples: int) -> None:
    frames = int(sizes.mel_frames(samples))
    assert rows_of(samples) == ((frames + 1) // 2 + 1) // 2


def test_sounds_are_as_long_as_wanted_and_hold_what_they_say() -> None:
    rng, seen = Random(1), set()
    for _ in range(500):
        one = draw_sound(rng, 4.0, test=False)
        seen.add(one.content)
        assert one.seconds <= 4.0
        assert not one.events or not held_out(one.key)
        for event, later in zip(one.events, one.events[1:], strict=False):
            assert later.begin > event.begin + event.length
        assert all(event.begin + event.length <= one.seconds for event in one.events)
        assert len(one.events) <= MOST_BEEPS
        states = {event.state for event in one.events}
        assert all(state in one.content for state in states)
    assert seen == set(CONTENTS)


def test_rows_know_what_sounds_there() -> None:
    states = row_states(sound("high low", HIGH, LOW))
    assert len(states) == 50
    assert states[int(0.35 / 0.04)] == STATES.index("high")
    assert states[int(1.15 / 0.04)] == STATES.index("low")
    assert states[int(0.7 / 0.04)] == 0
    rising = row_states(sound("up", Event(0.1, 1.0, 300, 900)))
    assert rising[int(0.2 / 0.04)] < 0, "nobody can tell yet"
    assert rising[int(0.8 / 0.04)] == STATES.index("up")
    assert np.all(rising[int(1.3 / 0.04) :] == 0)
