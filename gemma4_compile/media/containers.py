"""Opens sounds and videos with PyAV; runs in the process of `confined.media`."""

from __future__ import annotations

from typing import BinaryIO

import av
from av.container import InputContainer

# Playlists name other files and addresses, which FFmpeg would open: what holds media itself alone.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv,gif,asf"
_SOUND_FILES = "aac,amr,caf"


def opened(file: BinaryIO, *, sounds: bool = False) -> InputContainer:
    """Open a file from its beginning; av.FFmpegError for one that is not read.

    Tags are no reason to refuse one: old cameras and phones write them in the alphabet of their
    country.

    Parameters
    ----------
    sounds : whether files that hold sound alone are read, too
    """
    file.seek(0)
    formats = f"{_CONTAINERS},{_SOUND_FILES}" if sounds else _CONTAINERS
    return av.open(file, "r", options={"format_whitelist": formats}, metadata_errors="replace")
