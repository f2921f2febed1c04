"""Settings of a package's media: the key `media` of the library's metadata and of provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.limits import MAX_SAMPLES, VIDEO_BUDGET
from gemma4_compile.media.sizes import BUDGETS, CLIENT_BLOCKS, DEFAULT_BUDGET, SQUARE, WIDE

MEDIA = "media"
_SettingsT = TypeVar("_SettingsT", "ImageSettings", "AudioSettings")
_POSITIVE = (
    *("block_size", "max_budget", "grid_size", "samples_per_row"),
    *("client_across", "client_down"),
)
_MIXED = "compile the package again, with this version"


@dataclass(frozen=True)
class ImageSettings:
    """Settings by which pictures enter a prompt.

    Attributes
    ----------
    begin, soft, end : ids around a picture's rows and in their place
    video : the id in the place of the rows of a video's frame
    block_size : pixels of the side of the square that becomes one row
    max_budget : most rows of one picture that the package takes
    grid_size : most blocks of a picture's side: those that the tables of positions have
    client_across, client_down : blocks of the one picture that the stock client hands over
    """

    begin: int
    soft: int
    end: int
    video: int
    block_size: int = 48
    max_budget: int = DEFAULT_BUDGET
    grid_size: int = max(BUDGETS)
    client_across: int = CLIENT_BLOCKS[0]
    client_down: int = CLIENT_BLOCKS[1]

    @property
    def client_blocks(self) -> tuple[int, int]:
        """Blocks across and down of the client's picture."""
        return self.client_across, self.client_down

    @property
    def client_shape(self) -> str:
        """Shape of the client's picture."""
        return SQUARE if self.client_across == self.client_down else WIDE

    @property
    def budgets(self) -> tuple[int, ...]:
        """The budgets that the package can serve; its own alone where it is below all others."""
        return tuple(each for each in BUDGETS if each <= self.max_budget) or (self.max_budget,)

    @property
    def budget(self) -> int:
        """Rows that a picture may take where nobody asks for another number."""
        return min(DEFAULT_BUDGET, self.max_budget)

    @property
    def video_budget(self) -> int:
        """Rows that a frame of a video may take."""
        return min(VIDEO_BUDGET, self.max_budget)


@dataclass(frozen=True)
class AudioSettings:
    """Settings by which sounds enter a prompt.

    Attributes
    ----------
    begin, soft, end : ids around a sound's rows and in their place
    samples_per_row : at 16 kHz
    unused_samples : the first row needs more than so many, as do all rows together: 160 for the
        towers, whose first frame reaches so far, 0 where frames are projected as they are
    """

    begin: int
    soft: int
    end: int
    samples_per_row: int = 640
    unused_samples: int = 0

    def rows(self, samples: int) -> int:
        """Rows of a sound of so many samples, as the model's processor counts them."""
        used = min(samples, MAX_SAMPLES) - self.unused_samples
        return max(0, -(-used // self.samples_per_row))


@dataclass(frozen=True)
class MediaSettings:
    """Media that a package takes besides text; None for those that it does not take.

    Attributes
    ----------
    whole_images : the rows of a picture see each other, so that no chunk may cut it
    """

    image: ImageSettings | None = None
    audio: AudioSettings | None = None
    whole_images: bool = False

    def to_json(self) -> dict[str, object]:
        """The value of the metadata's key `media`."""
        return {
            "image": None if self.image is None else asdict(self.image),
            "audio": None if self.audio is None else asdict(self.audio),
            "whole_images": self.whole_images,
        }

    @classmethod
    def from_json(cls, value: object) -> MediaSettings:
        """Read what `to_json` made; ArtifactError for anything else."""
        if not isinstance(value, Mapping) or not value.keys() <= {f.name for f in fields(cls)}:
            raise _damaged("")
        whole = value.get("whole_images", False)
        if not isinstance(whole, bool):
            raise _damaged(".whole_images")
        image = _read(ImageSettings, "image", value.get("image"))
        audio = _read(AudioSettings, "audio", value.get("audio"))
        return cls(image, audio, whole)


def media_settings(metadata: Mapping[str, object]) -> MediaSettings:
    """Settings of a package by its metadata or provenance; text alone where it has none."""
    value = metadata.get(MEDIA)
    return MediaSettings() if value is None else MediaSettings.from_json(value)


def _read(kind: type[_SettingsT], name: str, value: object) -> _SettingsT | None:
    if value is None:
        return None
    known = {field.name for field in fields(kind)}
    if not isinstance(value, Mapping) or not value.keys() <= known:
        raise _damaged(f".{name}")
    for key, number in value.items():
        positive = key in _POSITIVE
        if type(number) is not int or not (1 if positive else 0) <= number < 1 << 31:
            raise _damaged(f".{name}.{key}")
    try:
        return kind(**value)
    except TypeError as error:  # a key is missing
        raise _damaged(f".{name}") from error


def _damaged(where: str) -> ArtifactError:
    return ArtifactError(f"the library's metadata is damaged at `media{where}`", hint=_MIXED)
