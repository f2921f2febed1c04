"""Decodes the sound of phones, browsers and videos with PyAV, as `sound` others with libsndfile.

It is imported where libsndfile knows no way alone: a sound of the usual kinds needs no PyAV.
"""

from __future__ import annotations

from typing import BinaryIO

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer

from gemma4_compile.errors import MediaError
from gemma4_compile.media.containers import opened
from gemma4_compile.media.file_kinds import AS_VIDEO
from gemma4_compile.media.samples import (
    DAMAGED,
    LIMIT_S,
    Samples,
    check_form,
    checked,
    most_samples,
    too_long,
)

_LACK_S = 0.5  # that a sound may end before its container says: a codec's last frames


def read(file: BinaryIO) -> tuple[Samples, int] | None:
    """Mean of the channels of a file's sound, and its rate; None for a file that is not read.

    What an encoder put before the sound, and what an edit list leaves out, is left out.

    Raises
    ------
    MediaError
        If the file has no sound, or one that is damaged or beyond a limit.
    """
    try:
        container = opened(file, sounds=True)
    except av.FFmpegError:
        return None
    with container:
        stream = _stream(container)
        stream.codec_context.thread_count = 1  # threads take memory that a limit counts
        try:
            samples, rate = _decoded(container, stream)
        except av.FFmpegError as error:
            raise MediaError(f"the sound is damaged: {error.strerror}", hint=DAMAGED) from error
        _check_whole(container, stream, len(samples) / rate)
    return samples, rate


def _stream(container: InputContainer) -> AudioStream:
    """The one that players choose, or another where its codec is not known."""
    streams = container.streams.audio
    if not streams:
        raise MediaError("the file has no sound, only pictures", hint=AS_VIDEO)
    known = [each for each in streams if each.codec_context is not None]  # PyAV has None, too
    if not known:
        raise MediaError("the sound's codec is not known here", hint="save it as WAV")
    best = container.streams.best("audio")
    return next((each for each in known if each is best), known[0])


def _decoded(container: InputContainer, stream: AudioStream) -> tuple[Samples, int]:
    pieces: list[Samples] = []
    rate = count = 0
    for frame in container.decode(stream):
        check_form(frame.sample_rate, len(frame.layout.channels))
        if rate not in (0, frame.sample_rate):
            raise MediaError(
                f"the sound has {rate} samples a second, and {frame.sample_rate} later on",
                hint="save it with one rate",
            )
        rate = frame.sample_rate
        pieces.append(_mean(frame))
        count += frame.samples
        if count > most_samples(rate):
            raise too_long(f"more than {LIMIT_S:g} s")
    return checked(np.concatenate(pieces or [np.zeros(0, np.float32)])), rate


def _mean(frame: AudioFrame) -> Samples:
    """Mean of a frame's channels, from -1 to 1."""
    found = frame.to_ndarray()
    channels = len(frame.layout.channels)
    if not frame.format.is_planar:
        found = found.reshape(-1, channels).T
    if found.dtype.kind == "u":  # around the middle
        found = found.astype(np.int32) - 128
        whole = 128
    else:
        whole = 1 if found.dtype.kind == "f" else 1 << (8 * found.dtype.itemsize - 1)
    return (found / whole).mean(axis=0).astype(np.float32)


def _check_whole(container: InputContainer, stream: AudioStream, seconds: float) -> None:
    """MediaError for an MP4 that was cut: others do not say how long they are, or guess."""
    if "mp4" not in container.format.name or not stream.duration or stream.time_base is None:
        return
    announced = float(stream.duration * stream.time_base)
    if seconds < announced - _LACK_S:
        raise MediaError(
            f"the sound is damaged: it ends after {seconds:.1f} of {announced:.1f} s", hint=DAMAGED
        )
