"""Ids of a prompt with the pictures and sounds among them, and how media become rows of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from tokenizers import Tokenizer

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import (
    Medium,
    Picture,
    Sound,
    audio_settings,
    image_settings,
    kind_of,
)
from gemma4_compile.media.settings import MediaSettings


@dataclass(frozen=True)
class Rows:
    """A picture or a sound, with the ids around its rows and in their place."""

    medium: Picture | Sound
    begin: int
    soft: int
    end: int


@dataclass(frozen=True)
class Run:
    """Rows of a medium in a prompt.

    Attributes
    ----------
    start : the place of the first one
    count : how many there are
    first : the number of the first one among those of the medium
    """

    start: int
    count: int
    medium: Picture | Sound
    first: int = 0

    @property
    def modality(self) -> int:
        """Modality of the rows, as the library takes it."""
        return abi.MODALITY_AUDIO if isinstance(self.medium, Sound) else abi.MODALITY_MEDIA


@dataclass(frozen=True)
class Prompt:
    """Tokens of a prompt, or of a chunk of it.

    Attributes
    ----------
    ids : of all tokens, also those in the places of media
    runs : its media, in order
    tenant : who asks; no state of another's is used, so that no time tells what others asked
    """

    ids: list[int] = field(default_factory=list)
    runs: tuple[Run, ...] = ()
    tenant: str = ""

    def __len__(self) -> int:
        """Its tokens."""
        return len(self.ids)

    @classmethod
    def of(cls, tokens: Tokens) -> Prompt:
        """A prompt as it is, or one of these ids."""
        return tokens if isinstance(tokens, Prompt) else cls(list(tokens))

    @classmethod
    def joined(cls, parts: Iterable[Sequence[int] | Rows]) -> Prompt:
        """Ids, and media with what surrounds them, one after the other."""
        ids: list[int] = []
        runs = []
        for part in parts:
            if isinstance(part, Rows):
                ids.append(part.begin)
                runs.append(Run(len(ids), part.medium.rows, part.medium))
                ids += [part.soft] * part.medium.rows + [part.end]
            else:
                ids += part
        return cls(ids, tuple(runs))

    def part(self, begin: int, end: int) -> Prompt:
        """The ids from `begin` to before `end`, and the rows that are among them."""
        runs = []
        for run in self.runs:
            first, last = max(run.start, begin), min(run.start + run.count, end)
            if first < last:
                skipped = run.first + first - run.start
                runs.append(Run(first - begin, last - first, run.medium, skipped))
        return Prompt(self.ids[begin:end], tuple(runs), "" if begin else self.tenant)

    def modalities(self) -> list[int]:
        """Modality of every row, as the library takes it."""
        return self._modalities

    @cached_property
    def _modalities(self) -> list[int]:
        found = [abi.MODALITY_TEXT] * len(self)
        for run in self.runs:
            found[run.start : run.start + run.count] = [run.modality] * run.count
        return found

    def keys(self) -> list[int]:
        """A number for each row: equal where the rows are, be it of text or of the same medium.

        The first one's is the tenant's own, so that prompts of two tenants share no beginning.
        """
        return self._keys

    @cached_property
    def _keys(self) -> list[int]:
        found = list(self.ids)
        for run in self.runs:
            name = int.from_bytes(run.medium.digest, "big") << 32
            numbers = range(run.first, run.first + run.count)
            found[run.start : run.start + run.count] = [-1 - (name | number) for number in numbers]
        if self.tenant and found:
            named = f"tenant {found[0]} {self.tenant}".encode("utf-8", "surrogatepass")
            found[0] = -1 - (int.from_bytes(hashlib.sha256(named).digest(), "big") << 32)
        return found


Tokens: TypeAlias = "Prompt | Sequence[int]"
"""A prompt; ids where there are no media among them."""


class Spread:
    """Puts media in the places that a chat template leaves for them, as the processors do.

    Attributes
    ----------
    placeholders : texts of the tokens that mark such a place
    """

    def __init__(self, tokenizer: Tokenizer, settings: MediaSettings) -> None:
        self._settings = settings
        image, audio = settings.image, settings.audio
        ids: dict[str, int] = {}
        if image is not None:
            ids |= {"image": image.soft, "video": image.video}
        if audio is not None:
            ids["audio"] = audio.soft
        self._kinds = {_text(tokenizer, token_id): kind for kind, token_id in ids.items()}
        self.placeholders = list(self._kinds)
        self._places = re.compile(f"({'|'.join(map(re.escape, self.placeholders)) or '(?!)'})")

    def split(self, pieces: Sequence[str], media: Sequence[Medium]) -> Iterator[list[str | Rows]]:
        """Texts to encode and rows in place of each piece of a rendered conversation.

        Parameters
        ----------
        media : of the messages, in order

        Raises
        ------
        UsageError
            If the template leaves other places than for these media, or the package does not take
            one.
        """
        split = [self._places.split(piece) for piece in pieces]
        kinds = [self._kinds[place] for piece in split for place in piece[1::2]]
        for medium in media:
            self._rows(medium)
        if kinds != [kind_of(medium) for medium in media]:
            raise UsageError(
                f"the chat template leaves no place for what the messages hold: expected "
                f"{', '.join(map(kind_of, media)) or 'nothing'}, found "
                f"{', '.join(kinds) or 'nothing'}",
                hint="take the chat template of a checkpoint that sees and hears",
            )
        queue = iter(media)
        for texts in split:
            segments: list[str | Rows] = [texts[0]]
            for text in texts[2::2]:
                segments += [*self._rows(next(queue)), text]
            yield list(_joined(segments))

    def _rows(self, medium: Medium) -> list[str | Rows]:
        if isinstance(medium, Sound):
            audio = audio_settings(self._settings)
            return [Rows(medium, audio.begin, audio.soft, audio.end)]
        image = image_settings(self._settings, kind_of(medium))
        if isinstance(medium, Picture):
            return [Rows(medium, image.begin, image.soft, image.end)]
        found: list[str | Rows] = []
        for index, (time, picture) in enumerate(medium.frames):
            found.append(f"{' ' if index else ''}{time} ")
            found.append(Rows(picture, image.begin, image.video, image.end))
        return found


def _joined(segments: Iterable[str | Rows]) -> Iterator[str | Rows]:
    """The segments, texts next to each other as one, as a tokenizer is to see them."""
    text = ""
    for segment in segments:
        if isinstance(segment, str):
            text += segment
            continue
        if text:
            yield text
            text = ""
        yield segment
    if text:
        yield text


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    text: str | None = tokenizer.id_to_token(token_id)
    if text is None:
        raise ArtifactError(
            f"the tokenizer has no token {token_id}, which the library takes for media",
            hint="compile the package again",
        )
    return text
