"""Files that are given as what they are not: what each error says to do leads somewhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from PIL import Image

from gemma4_compile.errors import MediaError
from gemma4_compile.media import picture, sound, video
from gemma4_compile.media.file_kinds import kind_of_file
from tests.heic_files import heic_file
from tests.media_files import noise, recording, saved, sound_file, tone, video_file

WAYS: Mapping[str, Callable[..., object]] = {
    "picture": picture.decode,
    "sound": sound.decode,
    "video": video.decode,
}


def pictures(form: str) -> bytes:
    return saved(Image.fromarray(noise(16, 16)), form)


def silent_video(path: Path) -> bytes:
    return video_file(path / "silent.mp4", 3).read_bytes()


FILES: Mapping[str, Callable[[Path], bytes]] = {
    **{form: lambda _, form=form: pictures(form) for form in ("PNG", "JPEG", "WEBP", "BMP")},  # type: ignore[misc]
    **{form: lambda _, form=form: pictures(form) for form in ("TIFF", "AVIF", "GIF", "PPM")},  # type: ignore[misc]
    "HEIC": lambda _: heic_file(noise(64, 64)),
    "cut HEIC": lambda _: heic_file(noise(64, 64))[:200],
    "JPEG XL": lambda _: b"\xff\x0a" + bytes(100),
    **{form: lambda _, form=form: sound_file(form=form) for form in ("WAV", "FLAC", "MP3")},  # type: ignore[misc]
    **{form: lambda _, form=form: sound_file(form=form) for form in ("OGG", "AIFF", "CAF")},  # type: ignore[misc]
    "M4A": lambda _: recording("ipod", "aac"),
    "AAC": lambda _: recording("adts", "aac"),
    "AMR": lambda _: recording("amr", "libopencore_amrnb", tone(1, 8000), 8000),
    "MP4 of sound": lambda _: recording("mp4", "aac"),
    "WebM of sound": lambda _: recording("webm", "libopus"),
    "MP4 without sound": silent_video,
    "video": lambda _: recording("mp4", "aac", pictures=4),
    "cut video": lambda _: recording("mp4", "aac", pictures=4)[:300],
    "PDF": lambda _: b"%PDF-1.7\n" + bytes(100),
    "SVG": lambda _: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "text": lambda _: b"hello",
}
HEARD = {"WAV", "FLAC", "MP3", "OGG", "AIFF", "CAF", "M4A", "AAC", "AMR"}
HEARD |= {"MP4 of sound", "WebM of sound", "video"}
SEEN = {"HEIC", "PNG", "JPEG", "WEBP", "BMP", "TIFF", "AVIF", "GIF", "PPM"}
TAKEN = {
    "picture": SEEN,
    "sound": HEARD,
    "video": {"GIF", "MP4 without sound", "video"},
}


def advice(way: str, content: bytes) -> str | None:
    """The hint of the error, None where there is none."""
    try:
        WAYS[way](io.BytesIO(content), {})
    except MediaError as error:
        return error.hint or "nothing"
    return None


@pytest.mark.parametrize("name", FILES)
def test_hints_lead_to_a_way_that_takes_the_file_and_never_in_a_circle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as the decoder sets it, for ever
    content = FILES[name](tmp_path)
    hints = {way: advice(way, content) for way in WAYS}
    assert {way for way, hint in hints.items() if hint is None} == {
        way for way, names in TAKEN.items() if name in names
    }
    assert "nothing" not in hints.values()
    for way, hint in hints.items():
        visited = {way}
        while hint is not None and "give it as a" in hint:
            (following,) = [other for other in WAYS if f"give it as a {other}" in hint]
            assert following not in visited, (way, visited, hint)
            visited.add(following)
            hint = hints[following]
        if any(name in names for names in TAKEN.values()):
            assert hint is None, f"{name} as a {way} ends with {hint!r}, and could be given"


@pytest.mark.parametrize(
    ("way", "name", "words"),
    [
        ("picture", "cut HEIC", "the HEIC picture is damaged"),
        ("sound", "HEIC", "it is HEIC"),
        ("video", "HEIC", "a picture, no video: it is HEIC"),
        ("picture", "PDF", "it is PDF"),
        ("picture", "SVG", "text like SVG"),
        ("sound", "PNG", "it is PNG"),
        ("sound", "MP4 without sound", "no sound, only pictures"),
        ("video", "MP4 of sound", "no pictures, only sound"),
        ("video", "AVIF", "a picture, no video: it is AVIF"),
    ],
)
def test_the_kind_of_a_file_is_named(way: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=words):
        WAYS[way](io.BytesIO(FILES[name](tmp_path)), {})


def test_bytes_that_tell_nothing_have_no_kind() -> None:
    for content in (b"", b"hello", bytes(300), b"RIFF"):
        assert kind_of_file(io.BytesIO(content)) is None
