"""Sounds as WAV files that somebody else might have made: NumPy, other rates, other envelopes.

Nothing is shared with `sound_synthesis` but what a sound is.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import soundfile

from tools.training.tiny.question import Asked
from tools.training.tiny.sounds import Sound, draw_sound, question

RATES = (8000, 16_000, 22_050, 32_000, 44_100, 48_000)
_SUBTYPES = ("PCM_16", "PCM_16", "PCM_24", "FLOAT", "PCM_U8")
_SECONDS = (2.0, 4.0, 6.5)


@dataclass(frozen=True)
class SoundFile:
    """A sound as a WAV file, and a question about it with the right answer."""

    content: bytes
    sound: Sound
    asked: Asked


def _wave(rng: Random, phase: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A sine, alone or with overtones that fall off."""
    way = rng.random()
    if way < 0.6:
        return np.sin(phase)
    if way < 0.8:  # as of a clarinet
        return (np.sin(phase) + 0.3 * np.sin(3 * phase) + 0.1 * np.sin(5 * phase)) / 1.3
    return (np.sin(phase) + 0.25 * np.sin(2 * phase) + 0.08 * np.sin(4 * phase)) / 1.25


def synthesised(rng: Random, sound: Sound, rate: int) -> npt.NDArray[np.float64]:
    """Samples at any rate; tones swell and fade as a raised cosine."""
    total = round(sound.seconds * rate)
    found = np.zeros(total)
    edge = max(0.004, sound.edge)
    for event in sound.events:
        begin, count = round(event.begin * rate), round(event.length * rate)
        hertz = np.geomspace(event.from_hz, event.to_hz, count)
        tone = _wave(rng, 2 * np.pi * np.cumsum(hertz) / rate)
        rise = min(count // 2, round(edge * rate))
        ramp = 0.5 - 0.5 * np.cos(np.pi * np.arange(rise) / max(1, rise))
        tone[:rise] *= ramp
        tone[count - rise :] *= ramp[::-1]
        found[begin : begin + count] += tone[: max(0, total - begin)]
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(total)
    return np.clip(sound.level * found + sound.noise * noise, -1, 1)


def sound_file(rng: Random) -> SoundFile:
    """A held-out sound as a file, with a question about it."""
    sound = draw_sound(rng, rng.choice(_SECONDS), test=True)
    rate = rng.choice(RATES)
    samples = synthesised(rng, sound, rate)
    if rng.random() < 0.3:
        samples = np.stack([samples, 0.8 * samples], axis=1)
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype=rng.choice(_SUBTYPES))
    return SoundFile(file.getvalue(), sound, question(rng, sound))


def sound_files(count: int, seed: int = 1) -> list[SoundFile]:
    """Many of them."""
    rng = Random(f"sound files {seed}")
    return [sound_file(rng) for _ in range(count)]
