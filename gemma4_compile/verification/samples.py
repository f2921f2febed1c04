"""The picture and the sound that ship, as a package takes them, and what is run on them.

tools/draw_samples.py draws them.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.preprocess import Pixels
from gemma4_compile.media.settings import ImageSettings, MediaSettings
from gemma4_compile.media.sizes import target_size
from gemma4_compile.runtime.engine.media_prompt import Prompt, Rows
from gemma4_compile.verification.runners import Embed, Job, Step

Float32Array = npt.NDArray[np.float32]
Scale = Callable[[Pixels, tuple[int, int]], Pixels]
"""Scales pixels to a width and height."""

FOLDER = Path(__file__).parent / "samples"
_BEFORE, _AFTER = 4, 8  # tokens of the text around a medium
_PCM = 32_768.0


@dataclass(frozen=True)
class Trial:
    """A medium, and the tokens around it.

    Attributes
    ----------
    modality : its name in --modalities
    prompt : None where the package's context has no room for it
    steps : tokens that are decoded after the prompt, each the most probable one
    """

    modality: str
    medium: Picture | Sound
    prompt: Prompt | None
    steps: int

    def jobs(self) -> list[Job]:
        """Jobs in order: first the rows alone, then the prompt, then each token."""
        if self.prompt is None:
            return [Embed(self.medium)]
        return [
            Embed(self.medium),
            Step(self.prompt, clear=True),
            *(Step((), follow=True) for _ in range(self.steps)),
        ]


@dataclass(frozen=True)
class Room:
    """Sizes that a package has room for.

    Attributes
    ----------
    context : positions
    chunk : positions of a prefill
    steps : tokens to decode
    """

    context: int
    chunk: int
    steps: int


def read_picture() -> Pixels:
    """The picture that ships, RGB (height, width, 3)."""
    with np.load(FOLDER / "picture.npz", allow_pickle=False) as archive:
        rgb: Pixels = archive["rgb"]
    return rgb


def read_sound() -> Float32Array:
    """Samples of the sound that ships."""
    with wave.open(str(FOLDER / "sound.wav"), "rb") as file:
        values = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return values.astype(np.float32) / np.float32(_PCM)


def make_trials(
    settings: MediaSettings, ids: Sequence[int], room: Room, scale: Scale
) -> Iterator[Trial]:
    """Trials of what a package takes besides text.

    Parameters
    ----------
    ids : of a text, from the beginning of a sequence on
    """
    steps = min(room.steps, max(1, room.context // 4))
    head, tail = list(ids[:_BEFORE]), list(ids[_BEFORE : _BEFORE + _AFTER])
    around = len(head) + len(tail) + 2  # with the tokens that begin and end a medium
    free = room.context - steps - around

    def trial(modality: str, medium: Picture | Sound, begin: int, soft: int, end: int) -> Trial:
        if medium.rows > free:
            return Trial(modality, medium, None, 0)
        prompt = Prompt.joined([head, Rows(medium, begin, soft, end), tail])
        return Trial(modality, medium, prompt, steps)

    image, audio = settings.image, settings.audio
    if image is not None:
        longest = min(free, room.chunk) if settings.whole_images else free
        budget = min(image.budget, longest) if longest > 0 else image.budget
        picture = fitted(read_picture(), image, budget, scale)
        yield trial("image", picture, image.begin, image.soft, image.end)
    if audio is not None:
        samples = read_sound()
        while free > 0 and audio.rows(len(samples)) > free:
            samples = samples[: -audio.samples_per_row]
        sound = Sound.of(samples if audio.rows(len(samples)) else read_sound(), audio)
        yield trial("audio", sound, audio.begin, audio.soft, audio.end)


def fitted(rgb: Pixels, image: ImageSettings, budget: int, scale: Scale) -> Picture:
    """A picture of at most `budget` rows, whose sides the model has positions for."""
    height, width = rgb.shape[:2]
    sizes = (target_size(width, height, rows, image.block_size) for rows in range(budget, 0, -1))
    size = next(size for size in sizes if max(size) <= image.grid_size * image.block_size)
    return Picture.of(scale(rgb, size), image)
