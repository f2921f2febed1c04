"""Decodes frames of a video with PyAV; runs in the process of `confined.media`."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from gemma4_compile.errors import MediaError
from gemma4_compile.media.containers import opened
from gemma4_compile.media.file_kinds import AS_SOUND, better_given, is_still, kind_of_file, named
from gemma4_compile.media.limits import DEFAULT_FPS, VIDEO_FRAMES
from gemma4_compile.media.picture import check_size, fitted

_FORMATS_HINT = "give an MP4, MOV, WebM, MKV or AVI file"
_DAMAGED = "save it again from the program that made it"
_IN_ORDER = 2000  # frames of a video that is decoded from its beginning; a longer one is sought in
_FURTHER_BACK_S = (0, 2, 10, 60)  # than a time, until there is a key frame
_MOST_PACKETS = (
    2_000_000  # that are counted where the header does not say how many frames there are
)


def decode(file: BinaryIO, options: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
    """Decode frames at even distances, as transformers' `Gemma4VideoProcessor` chooses them.

    Parameters
    ----------
    options : `fit`: None, or budget and block of the size that each is scaled to

    Returns
    -------
    frames: width, height and seconds of each; their pixels, one after another
    """
    if not file.seek(0, 2):
        raise MediaError("the video's file is empty", hint=_FORMATS_HINT)
    kind = kind_of_file(file)
    if is_still(kind):  # FFmpeg makes a video of some
        raise MediaError(
            f"this is a picture, no video{named(kind)}", hint=better_given(kind, "video")
        )
    try:
        with opened(file) as container:
            header, pixels = [], []
            for seconds, frame in _sampled(container):
                check_size(frame.width, frame.height, "video")
                # One thread, as of the codec below.
                image = frame.to_image(threads=1).convert("RGB")  # type: ignore[no-untyped-call]
                image = fitted(_upright(image, frame), options.get("fit"))
                header.append([image.width, image.height, seconds])
                pixels.append(image.tobytes())
    except av.FFmpegError as error:
        raise MediaError(
            f"this is no video that is read here, or damaged{named(kind)} ({error.strerror})",
            hint=better_given(kind, "video") or _FORMATS_HINT,
        ) from error
    return {"frames": header}, b"".join(pixels)


def indices(total: int) -> list[int]:
    """Numbers of the frames that are taken; all of a video that has fewer than it takes."""
    count = min(VIDEO_FRAMES, total)
    return [index * total // count for index in range(count)]


def _upright(image: Image.Image, frame: VideoFrame) -> Image.Image:
    """Turn and mirror a frame as its container says, by quarter turns.

    `VideoFrame.rotation` knows turns alone: of a mirrored frame it makes half a turn, or nothing.
    """
    if "DISPLAYMATRIX" not in frame.side_data:
        return image
    matrix = frame.side_data["DISPLAYMATRIX"]  # type: ignore[typeddict-item]
    x_by_x, y_by_x, _, x_by_y, y_by_y, *_ = struct.unpack("=9i", bytes(matrix))
    if abs(x_by_y) + abs(y_by_x) > abs(x_by_x) + abs(y_by_y):
        image = image.transpose(Image.Transpose.TRANSPOSE)
        x_by_x, y_by_y = x_by_y, y_by_x
    if x_by_x < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if y_by_y < 0:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return image


def _sampled(container: InputContainer) -> Iterator[tuple[float, VideoFrame]]:
    stream = _stream(container)
    if stream.codec_context is None:  # PyAV's types do not say so
        raise MediaError("the video's codec is not known here", hint="save it as H.264")
    stream.codec_context.thread_count = 1  # threads take memory that a limit counts
    check_size(stream.codec_context.width, stream.codec_context.height, "video")
    rate = stream.average_rate
    total, measured = stream.frames, None
    if not (total and rate):
        total, measured = _counted(container, stream)
    elif stream.duration and stream.time_base is not None:
        # A film that was cut by its edit list alone has the other frames, too, and shows none.
        total = min(total, math.ceil(stream.duration * stream.time_base * rate))
    if total < 1:
        raise MediaError("the video has no frames", hint=_DAMAGED)
    fps = float(rate) if rate else measured or DEFAULT_FPS
    wanted = indices(total)
    frames = (
        _in_order(container, stream, wanted)
        if total <= _IN_ORDER
        else _sought(container, stream, [index / fps for index in wanted])
    )
    found = 0
    for index, frame in zip(wanted, frames, strict=False):
        found += 1
        yield index / fps, frame
    if 2 * found < len(wanted):
        raise MediaError(
            f"the video is damaged: {found} of {len(wanted)} frames at even distances were found",
            hint=_DAMAGED,
        )


def _stream(container: InputContainer) -> VideoStream:
    """The first one that is no cover of a sound."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    raise MediaError("the file has no pictures, only sound", hint=AS_SOUND)


def _counted(container: InputContainer, stream: VideoStream) -> tuple[int, float | None]:
    """Frames of a stream, and how many a second has: browsers record without saying either."""
    packets = itertools.islice(container.demux(stream), _MOST_PACKETS)
    times = [packet.pts for packet in packets if packet.size]
    container.seek(0)
    known = [time for time in times if time is not None]
    ticks = max(known, default=0) - min(known, default=0)
    if not ticks or stream.time_base is None:
        return len(times), None
    return len(times), (len(times) - 1) / float(ticks * stream.time_base)


def _in_order(
    container: InputContainer, stream: VideoStream, wanted: Sequence[int]
) -> Iterator[VideoFrame]:
    taken = set(wanted)
    for index, frame in enumerate(container.decode(stream)):
        if index in taken:
            yield frame
        if index >= wanted[-1]:
            return


def _sought(
    container: InputContainer, stream: VideoStream, times: Sequence[float]
) -> Iterator[VideoFrame]:
    """The first frame at or after each time."""
    assert stream.time_base is not None, "of every stream"
    begin = stream.start_time or 0
    for seconds in times:
        frame = _frame_at(container, stream, begin + int(seconds / stream.time_base))
        if frame is None:
            return
        yield frame


def _frame_at(container: InputContainer, stream: VideoStream, offset: int) -> VideoFrame | None:
    """The first frame at or after an offset, decoded from a key frame that is not after it.

    An MPEG stream is sought by its packets, not by its key frames: the one before may be further
    back.
    """
    assert stream.time_base is not None, "of every stream"
    earliest = min(stream.start_time or 0, 0)
    found = None
    for seconds in _FURTHER_BACK_S:
        container.seek(max(offset - int(seconds / stream.time_base), earliest), stream=stream)
        is_whole = False
        for frame in container.decode(stream):
            is_whole |= bool(frame.key_frame) and (frame.pts is None or frame.pts <= offset)
            if frame.pts is None or frame.pts >= offset:
                found = frame
                break
        if is_whole:
            break
    return found
