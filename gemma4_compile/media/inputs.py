"""Pictures, sounds and videos that are ready for a package, and how files become them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import MediaError, UsageError
from gemma4_compile.media.decode import Samples, decode_audio, decode_image, decode_video
from gemma4_compile.media.limits import SAMPLE_RATE_HZ
from gemma4_compile.media.preprocess import Pixels, Positions, blocks, timestamp
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings

Source = bytes | Path


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture, scaled and cut.

    Attributes
    ----------
    pixels : (rows, block * block * 3), 0 to 255
    positions : (rows, 2): cell of the grid as x, y
    digest : of both: equal for pictures that a model cannot tell apart
    """

    pixels: Pixels
    positions: Positions
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, rgb: Pixels, settings: ImageSettings) -> Picture:
        """Cut a picture that is scaled already; MediaError for one with too long a side."""
        pixels, positions = blocks(rgb, settings.block_size)
        longest = int(positions.max()) + 1
        if longest > settings.grid_size:
            raise MediaError(
                f"the picture is too narrow: it is {longest} blocks long, and this model knows "
                f"positions of {settings.grid_size}",
                hint="cut it, or look at it with fewer tokens",
            )
        return cls(pixels, positions, _digest(b"picture", pixels, positions))

    @property
    def rows(self) -> int:
        """Rows of the decoder that it takes."""
        return len(self.pixels)


@dataclass(frozen=True, eq=False)
class Sound:
    """A sound: one channel at 16 kHz.

    Attributes
    ----------
    rows : of the decoder that it takes
    """

    samples: Samples
    rows: int
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, samples: Samples, settings: AudioSettings) -> Sound:
        """Count the rows; MediaError for a sound that is too short for one."""
        rows = settings.rows(len(samples))
        if rows < 1:
            shortest = 1000 * (settings.unused_samples + 1) / SAMPLE_RATE_HZ
            raise MediaError(
                f"the sound lasts {1000 * len(samples) / SAMPLE_RATE_HZ:.1f} ms; expected at least "
                f"{shortest:.1f} ms",
                hint="give a longer one",
            )
        return cls(samples, rows, _digest(b"sound", samples))


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of a video, each with its time as text."""

    frames: tuple[tuple[str, Picture], ...]

    @property
    def rows(self) -> int:
        """Rows of the decoder that all frames take."""
        return sum(picture.rows for _, picture in self.frames)


Medium = Picture | Sound | Video
KINDS = {"image": Picture, "audio": Sound, "video": Video}
"""Kinds of media by their names in chat templates."""


def kind_of(medium: Medium) -> str:
    """The kind's name in chat templates."""
    return next(name for name, kind in KINDS.items() if isinstance(medium, kind))


def load(
    kind: str, source: Source, settings: MediaSettings, *, budget: int | None = None
) -> Medium:
    """Decode and prepare what a file holds.

    Parameters
    ----------
    kind : one of `KINDS`
    source : the file's content, or its path
    budget : most rows of a picture; None: as the package has it

    Raises
    ------
    UsageError
        If the package does not take this kind, or a library is not installed.
    MediaError
        If the file is damaged or beyond a limit.
    """
    if kind == "audio":
        audio = audio_settings(settings)
        return Sound.of(decode_audio(source), audio)
    image = image_settings(settings, kind)
    block = image.block_size
    if budget is not None and budget not in image.budgets:
        raise UsageError(
            f"this package takes pictures of up to {image.max_budget} tokens; found {budget}",
            hint=f"ask for {', '.join(map(str, image.budgets))}, or compile with --image-tokens "
            f"{budget}",
        )
    if kind == "image":
        return Picture.of(decode_image(source, (budget or image.budget, block)), image)
    frames = decode_video(source, (image.video_budget, block))
    return Video(tuple((timestamp(f.seconds), Picture.of(f.pixels, image)) for f in frames))


def check_modality(kind: str, modalities: Collection[str]) -> None:
    """As `check_taken`, by the names of what a package takes: before its library is loaded."""
    if kind == "audio" and "audio" not in modalities:
        raise _refused("sounds", "audio")
    if kind != "audio" and "image" not in modalities:
        raise _refused("videos" if kind == "video" else "pictures", "image")


def check_taken(kind: str, settings: MediaSettings) -> None:
    """UsageError for a kind that the package does not take."""
    if kind == "audio":
        audio_settings(settings)
    else:
        image_settings(settings, kind)


def is_taken(kind: str, settings: MediaSettings) -> bool:
    """Return whether the package takes `image`, `audio` or `video`."""
    return (settings.audio if kind == "audio" else settings.image) is not None


def image_settings(settings: MediaSettings, kind: str = "image") -> ImageSettings:
    """Settings of pictures; UsageError if the package takes none."""
    if settings.image is None:
        raise _refused("videos" if kind == "video" else "pictures", "image")
    return settings.image


def audio_settings(settings: MediaSettings) -> AudioSettings:
    """Settings of sounds; UsageError if the package takes none."""
    if settings.audio is None:
        raise _refused("sounds", "audio")
    return settings.audio


def _refused(what: str, modality: str) -> UsageError:
    return UsageError(
        f"this package takes no {what}: it was compiled without them",
        hint=f"compile a model that has them with --modalities text,{modality}, or all",
    )


def _digest(kind: bytes, *arrays: npt.NDArray[np.generic]) -> bytes:
    found = hashlib.sha256(kind)
    for array in arrays:
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()
