"""Beeps and tones: what a sound holds, when, and as which numbers it is made.

Nothing here needs torch: worker processes make them up, `sound_synthesis` makes their samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from tools.training.tiny.picture_questions import NOTHING, NUMBERS, with_article
from tools.training.tiny.question import Asked, any_about, held_out

RATE = 16_000
ROW_SAMPLES = 640
MOST_BEEPS = 5
LOW_HZ, HIGH_HZ = (140.0, 480.0), (900.0, 3600.0)
CONTENTS = (
    "nothing",
    *(f"{count} {pitch}" for pitch in ("high", "low") for count in range(1, MOST_BEEPS + 1)),
    "up", "down", "low high", "high low",
)  # fmt: skip
_WEIGHTS = (0.04, *(0.062,) * 10, 0.1, 0.1, 0.07, 0.07)
STATES = ("silence", "high", "low", "up", "down")
# Columns of an event's numbers.
MADE = ("begin", "length", "from_hz", "to_hz", "level", "edge", "timbre")
IGNORED = -100
_SURE_OF_A_SWEEP = 0.25  # seconds

WHAT = (
    "What do you hear?",
    "What do you hear?",
    "What do you hear?",
    "What can you hear?",
    "What is in the sound?",
    "What do you hear in the sound?",
    "What is in this sound?",
    "What is this sound?",
    "Describe the sound.",
    "Describe this sound.",
    "What does the sound hold?",
    "Tell me what you hear.",
    "Describe what you hear.",
    "What is in the audio?",
    "What is in the recording?",
)
WHAT_HERE = ("What is this?", "What is it?", "What is that?", "Describe it.")
_HOW_MANY = ("How many beeps are there?", "How many beeps do you hear?", "Count the beeps.",
             "How many beeps are in the sound?", "How many beeps can you hear?",
             "How many times does it beep?")  # fmt: skip
_PITCH_OF_ONE = ("Is the beep high or low?", "Is it high or low?", "Is it a high or a low beep?")
_PITCH = ("Are the beeps high or low?", "Are they high or low?", "Are these high or low beeps?")
_WAY = ("Does the tone go up or down?", "Does it go up or down?", "Is it going up or down?")
_IS_THERE = ("Is there {a}?", "Do you hear {a}?", "Can you hear {a}?", "Is there {a} in the sound?")


@dataclass(frozen=True)
class Event:
    """A tone, in seconds and hertz; it glides from one pitch to the other."""

    begin: float
    length: float
    from_hz: float
    to_hz: float

    @property
    def state(self) -> str:
        """What it is: one of `STATES`."""
        if self.from_hz != self.to_hz:
            return "up" if self.to_hz > self.from_hz else "down"
        return "high" if self.from_hz > (LOW_HZ[1] + HIGH_HZ[0]) / 2 else "low"


@dataclass(frozen=True)
class Sound:
    """A sound, `content` of `CONTENTS`."""

    content: str
    events: tuple[Event, ...]
    seconds: float
    level: float
    noise: float
    edge: float
    timbre: float

    @property
    def samples(self) -> int:
        """How many it has."""
        return round(self.seconds * RATE)

    @property
    def rows(self) -> int:
        """Rows that the sound becomes."""
        return rows_of(self.samples)

    @property
    def key(self) -> str:
        """What decides whether the sound is held out: what it holds, at which pitch."""
        pitches = [round(12 * math.log2(event.from_hz / 55)) for event in self.events]
        return f"sound {self.content} {' '.join(map(str, pitches[:1]))}"


def rows_of(samples: int) -> int:
    """Rows of a sound: frames that the features keep, halved twice."""
    return ((samples - 1) // 160 + 3) // 4


def _pitch(rng: Random, pitch: str) -> float:
    low, high = HIGH_HZ if pitch == "high" else LOW_HZ
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _beeps(rng: Random, pitches: list[str], begin: float, pace: float) -> list[Event]:
    events, hertz = [], {pitch: _pitch(rng, pitch) for pitch in ("high", "low")}
    length, gap = pace * rng.uniform(0.08, 0.5), max(0.07, pace * rng.uniform(0.08, 0.6))
    wobble = rng.choice((0.0, 0.0, 0.15))
    for pitch in pitches:
        long = max(0.06, length * (1 + wobble * rng.uniform(-1, 1)))
        events.append(Event(begin, long, hertz[pitch], hertz[pitch]))
        begin += long + gap * (1 + wobble * rng.uniform(-1, 1))
    return events


def _sweep(rng: Random, way: str, begin: float, pace: float) -> Event:
    ratio = math.exp(rng.uniform(math.log(1.6), math.log(6.0)))
    low = math.exp(rng.uniform(math.log(150), math.log(3800 / ratio)))
    ends = (low, low * ratio) if way == "up" else (low * ratio, low)
    return Event(begin, max(0.3, pace * rng.uniform(0.4, 1.6)), *ends)


def _events(rng: Random, content: str, begin: float, pace: float) -> list[Event]:
    if content == "nothing":
        return []
    if content in ("up", "down"):
        return [_sweep(rng, content, begin, pace)]
    count, pitch = content.split()
    pitches = [pitch] * int(count) if count.isdigit() else [count, pitch]
    return _beeps(rng, pitches, begin, pace)


def draw_sound(rng: Random, most_seconds: float, *, test: bool) -> Sound:
    """A sound of the wanted side of the split, not longer than that."""
    while True:
        (content,) = rng.choices(CONTENTS, _WEIGHTS)
        pace = rng.choice((0.6, 1.0, 1.0, 1.5)) * max(1.0, most_seconds / 6)
        around = 0.8 * max(1.0, most_seconds / 4)
        before = rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, around)))
        events = _events(rng, content, before, pace)
        end = events[-1].begin + events[-1].length if events else rng.uniform(0.3, 2.0)
        seconds = end + rng.choice((0.03, rng.uniform(0.03, 0.2), rng.uniform(0.0, around)))
        sound = Sound(
            content,
            tuple(events),
            max(0.3, seconds),
            math.exp(rng.uniform(math.log(0.06), math.log(0.95))),
            rng.choice((0.0, 0.0, math.exp(rng.uniform(math.log(1e-4), math.log(8e-3))))),
            rng.choice((0.002, 0.005, 0.01, 0.02, 0.03)),
            rng.choice((0.0, 0.0, rng.random())),
        )
        if sound.seconds <= most_seconds and (not events or held_out(sound.key) == test):
            return sound


def made_events(sound: Sound) -> npt.NDArray[np.float32]:
    """The numbers of `MADE`, (5, 7), for `sound_synthesis`; length 0 where there is no event."""
    found = np.zeros((MOST_BEEPS, len(MADE)), np.float32)
    for index, event in enumerate(sound.events):
        numbers = (event.begin, event.length, event.from_hz, event.to_hz)
        found[index] = (*numbers, sound.level, sound.edge, sound.timbre)
    return found


def row_states(sound: Sound) -> npt.NDArray[np.int64]:
    """Which of `STATES` each row is in, `IGNORED` where it cannot be known yet."""
    middles = (np.arange(sound.rows) + 0.5) * ROW_SAMPLES / RATE
    found = np.zeros(sound.rows, np.int64)
    for event in sound.events:
        state = STATES.index(event.state)
        begun = middles - event.begin
        inside = (begun > 0.02) & (begun < event.length - 0.02)
        edge = (np.abs(begun) <= 0.045) | (np.abs(begun - event.length) <= 0.045)
        found[edge] = IGNORED
        if STATES[state] in ("up", "down"):
            found[inside & (begun < _SURE_OF_A_SWEEP)] = IGNORED
            inside &= begun >= _SURE_OF_A_SWEEP
        found[inside & ~edge] = state
    return found


def described(sound: Sound) -> str:
    """What there is to hear."""
    if sound.content == "nothing":
        return NOTHING
    if sound.content in ("up", "down"):
        return f"A tone that goes {sound.content}."
    first, second = sound.content.split()
    if not first.isdigit():
        return f"A {first} beep, then a {second} beep."
    if first == "1":
        return f"A {second} beep."
    return f"{NUMBERS[int(first)].removesuffix('.')} {second} beeps."


def _beep_count(sound: Sound) -> int:
    return sum(event.from_hz == event.to_hz for event in sound.events)


def what(rng: Random, sound: Sound) -> Asked:
    """What there is to hear."""
    text = rng.choice(WHAT if rng.random() < 0.88 else WHAT_HERE)
    return "sound: what", text, described(sound)


def how_many(rng: Random, sound: Sound) -> Asked:
    """How many beeps."""
    return "sound: count", rng.choice(_HOW_MANY), NUMBERS[_beep_count(sound)]


def pitch(rng: Random, sound: Sound) -> Asked | None:
    """High or low, up or down."""
    states = {event.state for event in sound.events}
    if len(states) != 1:
        return None
    (state,) = states
    if state in ("up", "down"):
        return "sound: pitch", rng.choice(_WAY), f"{state.capitalize()}."
    texts = _PITCH_OF_ONE if len(sound.events) == 1 else _PITCH
    return "sound: pitch", rng.choice(texts), f"{state.capitalize()}."


def is_there(rng: Random, sound: Sound) -> Asked:
    """Return whether there is a beep, of a pitch."""
    name = rng.choice(("beep", "high beep", "low beep"))
    wanted = name.removesuffix("beep").strip()
    beeps = [event.state for event in sound.events if event.from_hz == event.to_hz]
    right = bool(beeps) if not wanted else wanted in beeps
    text = rng.choice(_IS_THERE).format(a=with_article(name))
    return "sound: is there", text, "Yes." if right else "No."


_MAKERS: tuple[tuple[Callable[[Random, Sound], Asked | None], float], ...] = (
    (what, 0.5), (how_many, 0.2), (pitch, 0.2), (is_there, 0.1),
)  # fmt: skip


def question(rng: Random, sound: Sound) -> Asked:
    """Any question about the sound."""
    return any_about(rng, sound, _MAKERS)
