"""Pictures and sounds of chat requests: content parts in, prepared media out."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.media.file_kinds import is_picture, kind_of_file
from gemma4_compile.media.inputs import Medium, Picture, Sound, check_taken, is_taken, load
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.media.sizes import BUDGETS
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fetch import Fetcher, FetchError
from gemma4_compile.runtime.server.fields import Ignored

MAX_MEDIA = 64  # of a request, with those of earlier turns
MAX_FETCHED = 8  # of them by address
_AT_A_TIME = 2  # files that are fetched or decoded, each in a process of its own
_KEPT_BYTES = 128 << 20
DETAILS = ("auto", "low", "high")
_EXPECTED = {
    "image": "expected `data:image/png;base64,...` or an http(s) address",
    "audio": "expected base64, alone or as `data:audio/wav;base64,...`; sounds are not fetched",
}
_FETCHED = ("http://", "https://")
# `base64 FILE` folds its lines; browsers leave out this white space in data addresses, too. The
# other two are the alphabet of addresses; padding may be missing there.
_UNFOLDED = str.maketrans("-_", "+/", " \t\n\f\r")
_ESCAPED = {"%2B": "+", "%2F": "/", "%3D": "=", "%0A": "", "%0D": ""}  # in addresses


@dataclass(frozen=True)
class GivenMedium:
    """A medium as a request gives it.

    Attributes
    ----------
    kind : `image` or `audio`
    name : of the field, for messages
    text : base64, or an address
    detail : how closely a picture is looked at
    message, part : its place
    """

    kind: str
    name: str
    text: str
    detail: str = "auto"
    message: int = 0
    part: int = 0

    @property
    def is_fetched(self) -> bool:
        """Return whether it is an address elsewhere."""
        return self.kind == "image" and self.text[:8].lower().startswith(_FETCHED)

    def error(self, message: str, code: str | None = None) -> ApiError:
        """A 400 that blames it."""
        return ApiError(400, f"`{self.name}`: {message}", param=self.name, code=code)


def check_count(given: Sequence[GivenMedium]) -> None:
    """ApiError for more media than one request may have."""
    fetched = sum(each.is_fetched for each in given)
    for count, most, what in (
        (len(given), MAX_MEDIA, "pictures and sounds"),
        (fetched, MAX_FETCHED, "pictures by address"),
    ):
        if count > most:
            message = f"`messages`: expected at most {most} {what}, found {count}"
            raise ApiError(400, message, param="messages")


def without_untaken(
    messages: tuple[Message, ...],
    given: tuple[GivenMedium, ...],
    settings: MediaSettings,
    ignored: Ignored,
) -> tuple[tuple[Message, ...], tuple[GivenMedium, ...]]:
    """The messages and media, words in the place of what tools found and the package does not take.

    An agent whose tool shows a picture sends it in every request from then on: refused, the whole
    conversation would be at its end. What a person sends stays, to be refused, and so does all of a
    strict request.
    """
    if ignored.strict:
        return messages, given
    told = list(messages)
    kept = []
    for each in given:
        message = told[each.message]
        if message.role != "tool" or is_taken(each.kind, settings):
            kept.append(each)
            continue
        what = "sound" if each.kind == "audio" else "picture"
        ignored.add(f"{what}s of tools, which the model is told of in words")
        words = f"(A {what}, which you cannot {'hear' if each.kind == 'audio' else 'see'}.)"
        parts = [*message.parts[: each.part], words, *message.parts[each.part + 1 :]]
        told[each.message] = replace(message, parts=tuple(parts))
    left = {each.message for each in kept}
    for index in {each.message for each in given} - left:
        texts = [part for part in told[index].parts if isinstance(part, str)]
        told[index] = replace(told[index], content="\n".join(filter(None, texts)), parts=())
    return tuple(told), tuple(kept)


class MediaReader:
    """Decodes the media of requests, away from the event loop; keeps those of earlier turns."""

    def __init__(self, settings: MediaSettings, hosts: Sequence[str] = ()) -> None:
        """Prepare.

        Parameters
        ----------
        settings : what the package takes
        hosts : from which pictures are fetched; see `Fetcher`
        """
        self._settings = settings
        self._fetcher = Fetcher(hosts) if hosts else None
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="media")
        self._kept: OrderedDict[bytes, Medium] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    async def resolve(
        self, messages: tuple[Message, ...], given: Sequence[GivenMedium]
    ) -> tuple[Message, ...]:
        """The messages with their media; ApiError 400 for one that is refused or damaged."""
        loop = asyncio.get_running_loop()
        for each in given:  # before anything is decoded
            self._check(each)
        resolved = list(messages)
        for each in given:
            medium = await loop.run_in_executor(self._threads, self._read, each)
            message = resolved[each.message]
            parts = [*message.parts[: each.part], medium, *message.parts[each.part + 1 :]]
            resolved[each.message] = replace(message, parts=tuple(parts))
        return tuple(resolved)

    def _check(self, given: GivenMedium) -> None:
        try:
            check_taken(given.kind, self._settings)
        except Gemma4CompileError as error:
            raise given.error(f"{error}; {error.hint}", code="unsupported_value") from error
        if given.is_fetched and self._fetcher is None:
            raise given.error(
                "addresses elsewhere are not fetched by this server: send the picture as a "
                "`data:` address (its operator can name hosts with --allow-media-hosts)",
                code="unsupported_value",
            )

    def _read(self, given: GivenMedium) -> Medium:
        content = self._content(given)
        budget = self._budget(given)
        key = hashlib.sha256(f"{given.kind} {budget} ".encode() + content).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            medium = load(given.kind, content, self._settings, budget=budget)
        except Gemma4CompileError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise given.error(f"{error}{hint}", code="invalid_media") from error
        self._keep(key, medium)
        return medium

    def _content(self, given: GivenMedium) -> bytes:
        if given.is_fetched:
            assert self._fetcher is not None, "checked before"
            try:
                return self._fetcher.get(given.text)
            except FetchError as error:
                raise given.error(str(error), code="media_not_fetched") from error
        text = given.text
        is_address = text[:8].lower().startswith(("data:", *_FETCHED))
        if given.kind == "image" and not is_address:
            return _bare_picture(given)
        if is_address:
            head, comma, text = text.partition(",")
            head = head.translate(_UNFOLDED).lower()
            if not comma or not head.startswith("data:") or not head.endswith(";base64"):
                raise given.error(f"{_EXPECTED[given.kind]}, found {given.text[:40]!r}")
            for escape, character in _ESCAPED.items():
                text = text.replace(escape, character).replace(escape.lower(), character)
        try:
            return from_base64(text)
        except ValueError as error:
            raise given.error(f"expected base64: {error}") from error

    def _budget(self, given: GivenMedium) -> int | None:
        """Rows of a picture: all that the package has room for, or as few as can be."""
        if self._settings.image is None or given.kind != "image" or given.detail == "auto":
            return None
        budgets = [each for each in self._settings.image.budgets if each in BUDGETS]
        if not budgets:
            return None
        return budgets[0] if given.detail == "low" else budgets[-1]

    def _keep(self, key: bytes, medium: Medium) -> None:
        with self._lock:
            if key in self._kept:  # of another request, meanwhile
                return
            self._kept[key] = medium
            self._kept_bytes += _size(medium)
            while self._kept_bytes > _KEPT_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= _size(oldest)


def from_base64(text: str) -> bytes:
    """Bytes of base64 as files, browsers and addresses have it; ValueError for what is none."""
    text = text.translate(_UNFOLDED).rstrip("=")  # some programs add it where there is enough
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _bare_picture(given: GivenMedium) -> bytes:
    """A picture in base64 alone, which transformers takes as well; a path is no such thing."""
    try:
        content = from_base64(given.text)
    except ValueError:
        content = b""
    if not is_picture(kind_of_file(io.BytesIO(content))):
        raise given.error(f"{_EXPECTED['image']}, found {given.text[:40]!r}")
    return content


def _size(medium: Medium) -> int:
    if isinstance(medium, Sound):
        return medium.samples.nbytes
    assert isinstance(medium, Picture), "requests have no videos"
    return medium.pixels.nbytes + medium.positions.nbytes
