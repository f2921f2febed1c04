"""Content parts that hold a picture, a sound or a file, as this API has them and as others do.

vLLM's clients send `audio_url`, transformers' `image` and `audio`, those of other protocols
`input_image` or a `source`, OpenAI's and Vercel's AI SDK a `file`: where a part holds one thing,
there is one reading of it.
"""

from __future__ import annotations

import io
import mimetypes
from collections.abc import Mapping

from gemma4_compile.media.file_kinds import is_picture, is_sound, kind_of_file
from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import DETAILS, GivenMedium, from_base64

_PICTURES = ("image_url", "input_image", "image", "image_base64")
_SOUNDS = ("input_audio", "audio_url", "audio")
_HELD = ("base64", "data", "file_data", "image_url", "source", "url")
_TYPES_OF_FILES = ("format", "mediaType", "media_type", "mimeType", "mime_type")
_TEXTS = ("application/json", "application/xml", "application/yaml", "image/svg+xml")
_BESIDE = {"detail", "filename", "id", "title", "type", *_TYPES_OF_FILES}
_NO_VIDEO = "videos are not served over the API: send pictures of it"


def kind_of_part(part: Fields) -> str:
    """A part's `type`; of one without, the only thing that it holds."""
    held = [name for name in ("text", "image_url", "input_audio") if part.has(name)]
    if part.has("type") or len(held) != 1 or part.ignored.strict:
        return part.need("type", str)
    return held[0]


def read_medium(part: Fields) -> GivenMedium | str | None:
    """Read a part of a user's message: a picture, a sound, a file's text; None for another type."""
    kind = kind_of_part(part)
    if kind == "input_audio" and isinstance(part.raw("input_audio"), dict):
        part.skip_unknown({"type", "input_audio"}, asks.PART)
        fields = part.inner("input_audio", part.need("input_audio", dict))
        fields.skip_unknown({"data", "format"}, {})  # the data decide what they are, not `format`
        return GivenMedium("audio", fields.name("data"), fields.need("data", str).strip())
    if kind == "image_url" and (part.has("image_url") or part.ignored.strict):
        part.skip_unknown({"type", "image_url"}, asks.PART)
        value = part.raw("image_url")
        if isinstance(value, str):  # as some clients write it
            value = {"url": value}
        fields = part.inner("image_url", value)
        fields.skip_unknown({"url", "detail"}, asks.IMAGE)
        url = fields.need("url", str).strip()
        return GivenMedium("image", fields.name("url"), url, detail_of(fields))
    if part.ignored.strict:
        return None
    if kind in _PICTURES:
        name, text = _only_thing(part, kind)
        return GivenMedium("image", name, text, detail_of(part))
    if kind in _SOUNDS:
        return GivenMedium("audio", *_only_thing(part, kind))
    return _file(part) if kind in ("file", "input_file") else None


def unserved_type(part: Fields) -> str:
    """What to say of a part of a type that is not served."""
    kind = kind_of_part(part)
    why = f"; {_NO_VIDEO}" if "video" in kind else ""
    return f"expected text, image_url or input_audio, found {kind[:60]!r}{why}"


def detail_of(fields: Fields, *, has_original: bool = False) -> str:
    """How closely to look at a picture.

    Parameters
    ----------
    has_original : whether the protocol itself has `original`: as large as it is, as far as there
        is room
    """
    detail = fields.get("detail", str) or "auto"
    is_strict = fields.ignored.strict
    known = detail if is_strict else detail.lower()
    if known == "original" and (has_original or not is_strict):
        known = "high"
    if known not in DETAILS:
        expected = (*DETAILS, *(["original"] if has_original else []))
        raise fields.error("detail", f"expected one of {', '.join(expected)}, found {detail!r}")
    return known


def _only_thing(part: Fields, kind: str, *, is_inner: bool = False) -> tuple[str, str]:
    """Name and text of the one thing that a part, or the object in it, holds."""
    places = {kind, *_HELD}
    part.skip_unknown(_BESIDE | places, asks.PART)
    held = [place for place in sorted(places) if part.has(place)]
    if not held and (part.has("file_id") or part.has("file_url")):
        other = "file_id" if part.has("file_id") else "file_url"
        why = "files are neither kept nor fetched here: send what it holds, as base64"
        raise part.error(other, why, code="unsupported_value")
    if len(held) != 1:
        found = ", ".join(held) or "nothing"
        raise part.error(kind, f"expected base64 or an address in one place, found {found}")
    value = part.raw(held[0])
    if isinstance(value, Mapping) and not is_inner:
        return _only_thing(part.inner(held[0], value), "data", is_inner=True)
    return part.name(held[0]), part.need(held[0], str).strip()


def _file(part: Fields) -> GivenMedium | str:
    """A file by its type, or by its contents where that says neither: a picture, a sound, a text.

    Machines differ in which names of files have a type, and browsers in what they send.
    """
    part.skip_unknown(_BESIDE | {"file", "file_id", *_HELD}, {})
    file = part.inner("file", part.raw("file")) if part.has("file") else part
    title = file.get("filename", str) or ""
    name, text = _only_thing(file, "file_data")
    head = text.partition(",")[0] if text[:5].lower() == "data:" else ""
    said = next((file.get(each, str) for each in _TYPES_OF_FILES if file.has(each)), None)
    guess, _ = mimetypes.guess_type(title)
    kind = (head[5:].partition(";")[0].strip() or said or guess or "unknown").lower()
    is_text = kind.startswith("text/") or kind in _TEXTS
    if not is_text and kind.startswith(("image/", "audio/")):
        return GivenMedium(kind.partition("/")[0], name, text)
    refused: ValueError
    try:
        content = from_base64(text.partition(",")[2] if head else text)
        words = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found, refused = kind_of_file(io.BytesIO(content)), error
    except ValueError as error:
        found, refused = None, error
    else:  # whatever its type is called: for some, machines have no name, or a video's (`a.ts`)
        found = kind_of_file(io.BytesIO(content))
        if is_text or ("\0" not in words and found != "PDF" and kind != "application/pdf"):
            return f"{title}:\n{words}" if title else words
    if is_text:
        raise part.error("file", f"expected a text of UTF-8 in base64: {refused}") from refused
    if is_picture(found) or is_sound(found):
        return GivenMedium("image" if is_picture(found) else "audio", name, text)
    why = _NO_VIDEO if kind.startswith("video/") else "send its text, or pictures of its pages"
    raise part.error(
        "type", f"files of type {kind[:60]!r} are not read here: {why}", code="unsupported_value"
    )
