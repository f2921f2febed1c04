"""Pictures, sounds and files of content parts, in the words of several APIs."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.media import GivenMedium, from_base64
from gemma4_compile.runtime.server.media_parts import read_medium

PICTURE, SOUND = "data:image/png;base64,iVBO", "data:audio/wav;base64,UklG"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBO"}


def read(part: dict[str, Any], *, strict: bool = False) -> GivenMedium | str | None:
    return read_medium(Fields(part, "part", Ignored(strict=strict)))


SPELLINGS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"type": "image_url", "image_url": {"url": f" {PICTURE}\n"}},
        "image",
        "image_url.url",
        PICTURE,
    ),
    ({"type": "image_url", "image_url": PICTURE}, "image", "image_url.url", PICTURE),
    ({"type": "input_image", "image_url": PICTURE}, "image", "image_url", PICTURE),
    ({"type": "image_url", "url": PICTURE}, "image", "url", PICTURE),
    ({"type": "input_image", "image_url": {"url": PICTURE}}, "image", "image_url.url", PICTURE),
    ({"type": "image", "image": PICTURE, "mediaType": "x"}, "image", "image", PICTURE),
    ({"type": "image", "url": PICTURE}, "image", "url", PICTURE),
    ({"type": "image", "base64": "iVBO"}, "image", "base64", "iVBO"),
    ({"type": "image", "source": SOURCE}, "image", "source.data", "iVBO"),
    ({"type": "input_audio", "input_audio": {"data": "UklG"}}, "audio", "input_audio.data", "UklG"),
    ({"type": "input_audio", "input_audio": SOUND}, "audio", "input_audio", SOUND),
    ({"type": "audio_url", "audio_url": {"url": SOUND}}, "audio", "audio_url.url", SOUND),
    ({"type": "audio_url", "audio_url": SOUND}, "audio", "audio_url", SOUND),
    ({"type": "audio", "audio": SOUND}, "audio", "audio", SOUND),
    ({"type": "audio", "data": "UklG", "mimeType": "audio/wav"}, "audio", "data", "UklG"),
    ({"type": "file", "file": {"file_data": PICTURE}}, "image", "file.file_data", PICTURE),
    ({"type": "file", "data": "UklG", "mediaType": "audio/wav"}, "audio", "data", "UklG"),
    (
        {"type": "file", "file": {"filename": "a.mp3", "file_data": "SUQz"}},
        "audio",
        "file.file_data",
        "SUQz",
    ),
    (
        {"type": "input_file", "filename": "a.PNG", "file_data": "iVBO"},
        "image",
        "file_data",
        "iVBO",
    ),
]


@pytest.mark.parametrize(("part", "kind", "name", "text"), SPELLINGS)
def test_a_part_that_holds_one_thing(part: dict[str, Any], kind: str, name: str, text: str) -> None:
    assert read(part) == GivenMedium(kind, f"part.{name}", text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ({"filename": "a.md", "file_data": "data:text/markdown;base64,77u/w6k="}, "a.md:\né"),
        ({"file_data": "data:application/json;base64,e30="}, "{}"),
        ({"filename": "a.txt", "file_data": "aGk="}, "a.txt:\nhi"),
        ({"filename": "a.toml", "file_data": "aGk="}, "a.toml:\nhi"),
        ({"filename": "Makefile", "file_data": "aGk="}, "Makefile:\nhi"),
        ({"filename": "a.ts", "file_data": "data:video/mp2t;base64,aGk="}, "a.ts:\nhi"),
        ({"filename": "a.svg", "file_data": "PHN2Zy8+"}, "a.svg:\n<svg/>"),
        ({"file_data": "data:application/octet-stream;base64,aGk="}, "hi"),
    ],
)
def test_a_file_of_text_is_its_text(file: dict[str, Any], text: str) -> None:
    assert read({"type": "file", "file": file}) == text


@pytest.mark.parametrize(
    ("begin", "kind"), [(b"RIFF\xff\xff\xff\xffWEBP", "image"), (b"OggS\0\x02\xff", "audio")]
)
def test_a_file_of_no_known_name_is_what_it_begins_as(begin: bytes, kind: str) -> None:
    data = base64.b64encode(begin).decode()
    found = read({"type": "file", "file": {"filename": "a.unheard", "file_data": data}})
    assert found == GivenMedium(kind, "part.file.file_data", data)


@pytest.mark.parametrize(("said", "detail"), [("", "auto"), ("HIGH", "high"), ("original", "high")])
def test_how_closely_to_look(said: str, detail: str) -> None:
    part = {"type": "image_url", "image_url": {"url": PICTURE, "detail": said}}
    assert read(part) == GivenMedium("image", "part.image_url.url", PICTURE, detail)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image"}, "found nothing"),
        ({"type": "image", "image": PICTURE, "url": PICTURE}, "found image, url"),
        ({"type": "image", "image": {"data": {"data": "x"}}}, "expected a string"),
        ({"type": "image", "image": PICTURE, "max_pixels": 5}, "max_pixels"),
        ({"type": "audio", "audio": SOUND, "image": PICTURE}, "holds one thing"),
        ({"type": "file", "file": {"file_id": "f"}}, "neither kept"),
        ({"type": "input_file", "file_url": "https://a.example/a.pdf"}, "nor fetched"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBE"}}, "application/pdf"),
        ({"type": "file", "file": {"file_data": "data:video/mp4;base64,AA"}}, "videos"),
        ({"type": "file", "file": {"filename": "a", "file_data": "AAAA"}}, "'unknown'"),
        ({"type": "file", "file": {"filename": "a.txt", "file_data": "gA=="}}, "UTF-8"),
        ({"type": "file", "file": {"filename": "a.txt", "file_data": "??"}}, "base64"),
    ],
)
def test_what_is_not_served_is_named(part: dict[str, Any], says: str) -> None:
    with pytest.raises(ApiError, match=says):
        read(part)


def test_a_strict_server_knows_its_own_words_alone() -> None:
    assert read({"type": "audio_url", "audio_url": SOUND}, strict=True) is None
    assert read({"type": "image_url", "image_url": {"url": PICTURE}}, strict=True)
    with pytest.raises(ApiError, match="detail"):
        read({"type": "image_url", "image_url": {"url": "x", "detail": "HIGH"}}, strict=True)


@pytest.mark.parametrize("content", [b"a", b"ab", b"abc", b"\xfb\xff"])
@pytest.mark.parametrize("more", ["", "=", "==", "===="])
def test_padding_may_be_missing_or_too_long(content: bytes, more: str) -> None:
    text = base64.b64encode(content).decode()
    assert from_base64(text + more) == from_base64(text.rstrip("=") + more) == content
