"""docs/media.md names what PyAV's wheel carries, and under which licence."""

from __future__ import annotations

import re
from pathlib import Path

import av
import av._core
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "media.md"
FFMPEG = {"avcodec", "avformat", "avfilter", "avdevice", "avutil", "swscale", "swresample"}


def section() -> str:
    text = PAGE.read_text("utf-8")
    return text.split("## Licences of what decodes")[1].split("\n## ")[0]


def carried() -> set[str]:
    """Names of the libraries beside PyAV, as wheels for Linux and macOS have them."""
    package = Path(av.__file__).parent
    folders = (package.parent / "av.libs", package / ".dylibs")
    files = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]
    found = {re.split(r"[-.]?(?:[0-9a-f]{8})?\.(?:so|\d|dylib)", name)[0] for name in files}
    return {name.removeprefix("lib") for name in found}


def test_every_library_of_the_wheel_is_named_with_its_licence() -> None:
    if not carried():
        pytest.skip("PyAV was built here: it carries no libraries")
    named = set(re.findall(r"`([\w-]+)`", section()))
    parts = {name for name in carried() if name.startswith("xcb")}  # "and its parts"
    assert not carried() - parts - named
    assert "and its parts" in section()
    assert carried() >= FFMPEG


def test_the_licence_of_ffmpeg_is_what_it_says_of_itself() -> None:
    if not carried():
        pytest.skip("PyAV was built here, with an FFmpeg of this machine")
    meta = av._core.library_meta
    assert {each["license"] for each in meta.values()} == {"LGPL version 3 or later"}
    linked = re.findall(r"--enable-lib(x26\d)", meta["libavcodec"]["configuration"])
    assert linked == ["x264", "x265"]
    assert all(f"`{name}`" in section() for name in linked)
