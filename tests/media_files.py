"""Pictures, sounds and videos as files, whole and hostile, made as a test needs them."""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import soundfile
from av.container import OutputContainer
from av.stream import Disposition
from PIL import Image

from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings

# Ids of the tiny tokenizer, which has all of these tokens.
SETTINGS = MediaSettings(
    ImageSettings(begin=1017, soft=1019, end=1021, video=1023, block_size=48, max_budget=280),
    AudioSettings(begin=1018, soft=1020, end=1022, samples_per_row=640, unused_samples=160),
)


def noise(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def picture(rows: int, seed: int = 0) -> Picture:
    """A picture of so many rows."""
    assert SETTINGS.image is not None
    return Picture.of(noise(48, 48 * rows, seed), SETTINGS.image)


def sound(rows: int, seed: int = 0) -> Sound:
    """A sound of so many rows."""
    assert SETTINGS.audio is not None
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, 640 * rows).astype(np.float32)
    return Sound.of(samples, SETTINGS.audio)


def smooth(height: int, width: int) -> npt.NDArray[np.uint8]:
    y, x = np.mgrid[0:height, 0:width]
    planes = (127 + 100 * np.sin(x / 7 + y / 13), 127 + 100 * np.cos(x / 3.3), (x * y) % 256)
    return np.stack(planes, -1).clip(0, 255).astype(np.uint8)


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture_file(height: int = 32, width: int = 64, seed: int = 0) -> bytes:
    return saved(Image.fromarray(noise(height, width, seed)))


def png(
    width: int, height: int, pixels: bytes, *, depth: int = 8, colours: int = 0, clear: bytes = b""
) -> bytes:
    """A PNG whose header says what the caller wants, over whatever compressed data.

    `clear`: the colour that is transparent, 16 bits a channel.
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    chunks = [(b"IHDR", header), *([(b"tRNS", clear)] if clear else [])]
    chunks += [(b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def tone(seconds: float, rate: int = 16_000, channels: int = 1) -> npt.NDArray[np.float32]:
    times = np.arange(round(seconds * rate)) / rate
    wave = (0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    return wave if channels == 1 else np.stack([wave * (1 - i / 4) for i in range(channels)], 1)


def sound_file(
    samples: npt.NDArray[np.generic] | None = None,
    rate: int = 16_000,
    form: str = "WAV",
    subtype: str | None = None,
) -> bytes:
    file = io.BytesIO()
    samples = tone(1) if samples is None else samples
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def recording(
    form: str,
    codec: str,
    samples: npt.NDArray[np.float32] | None = None,
    rate: int = 48_000,
    *,
    pictures: int = 0,
    cover: bool = False,
    tracks: int = 1,
    tags: bytes = b"",
    options: dict[str, str] | None = None,
) -> bytes:
    """A sound as phones and browsers record it: FFmpeg's names of a container and of a codec.

    Parameters
    ----------
    samples : (count,), or (count, channels)
    pictures : how many of a video are beside it
    cover : whether it has a picture for its player
    tracks : how often it is there
    tags : its title, which is taken as it is
    options : of the container
    """
    wave = tone(2, rate, channels=2) if samples is None else samples
    planes = np.ascontiguousarray(np.atleast_2d(wave.T))
    layout = "mono" if len(planes) == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", form, options=options or {}, metadata_encoding="latin-1") as container:
        container.metadata["title"] = tags.decode("latin-1")
        film = container.add_stream("mpeg4", rate=24) if pictures else None
        if film is not None:
            film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        art = container.add_stream("png") if cover else None
        if art is not None:
            art.width, art.height, art.pix_fmt = 16, 16, "rgb24"
            art.disposition = Disposition.attached_pic
        streams = [container.add_stream(codec, rate=rate, layout=layout) for _ in range(tracks)]
        if art is not None:
            container.mux(art.encode(av.VideoFrame.from_ndarray(noise(16, 16))))
        if film is not None:
            for index in range(pictures):
                shade = np.full((48, 64, 3), 8 * index, np.uint8)
                container.mux(film.encode(av.VideoFrame.from_ndarray(shade)))
            container.mux(film.encode())
        for stream in streams:
            _encode(container, stream, planes, layout, rate)
    return file.getvalue()


def _encode(
    container: OutputContainer,
    stream: Any,
    planes: npt.NDArray[np.float32],
    layout: str,
    rate: int,
) -> None:
    frame = av.AudioFrame.from_ndarray(planes, format="fltp", layout=layout)
    frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
    context = stream.codec_context
    cut = av.AudioResampler(context.format, context.layout, rate, context.frame_size or None)
    for piece in (*cut.resample(frame), *cut.resample(None)):
        container.mux(stream.encode(piece))
    container.mux(stream.encode(None))


def wav_header(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    """The header of a WAV of 16-bit samples, without any."""
    data = int(seconds * rate) * 2 * channels
    fmt = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    riff = b"RIFF" + struct.pack("<I", min(36 + data, 0xFFFFFFFF)) + b"WAVE"
    return riff + b"fmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", data)


def video_file(
    path: Path,
    frames: int,
    *,
    size: tuple[int, int] = (64, 48),
    rate: int = 24,
    gop: int = 12,
    matrix: tuple[int, int, int, int] | None = None,
    recorded: bool = False,
) -> Path:
    """Frames of grey whose brightness counts them, from black.

    `recorded`: as browsers do it, when a frame is there, into a Matroska file that names no rate.
    `matrix`: the frames are shown turned or mirrored, as numbers of 1, 0 and -1 say: x and y that
    x becomes, and those that y becomes. All are then of four quarters, each brighter than the last.
    """
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size = gop
        if recorded:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(frames):
            shade = np.full((size[1], size[0], 3), 255 * index // max(frames - 1, 1), np.uint8)
            if matrix is not None:
                shade[:] = quarters(*size)
            frame = av.VideoFrame.from_ndarray(shade)
            if recorded:
                frame.time_base = Fraction(1, 1000)
                frame.pts = 1000 * index // rate + 5 * (index % 3)
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    if recorded:
        duration = b"\x23\xe3\x83\x84"  # of a frame: becomes an element of 6 bytes without meaning
        content = bytearray(path.read_bytes())
        begin = content.index(duration)
        content[begin : begin + 8] = b"\xec\x86" + bytes(6)
        path.write_bytes(content)
    if matrix is not None:
        content = bytearray(path.read_bytes())
        begin = content.index(b"tkhd") + 44
        of_x, of_y = ([number << 16 for number in pair] for pair in (matrix[:2], matrix[2:]))
        content[begin : begin + 20] = struct.pack(">5i", *of_x, 0, *of_y)
        path.write_bytes(content)
    return path


def quarters(width: int, height: int) -> npt.NDArray[np.uint8]:
    """A picture (height, width, 3) of four shades of grey, row by row from black."""
    shades = np.array([[[0], [80]], [[160], [240]]], np.uint8)
    return shades.repeat(height // 2, 0).repeat(width // 2, 1).repeat(3, 2)
