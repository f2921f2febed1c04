"""HEIC pictures as phones write them: a grid of HEVC tiles, written here box by box."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

Pixels = npt.NDArray[np.uint8]
PRIMARY = 1


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def full(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def hevc(rgb: Pixels) -> tuple[bytes, bytes]:
    """The decoder's configuration and the one frame of a picture."""
    file = io.BytesIO()
    with av.open(file, "w", "mp4") as container:
        stream = container.add_stream("libx265", rate=1)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = rgb.shape[1], rgb.shape[0], "yuv444p"
        stream.options = {"x265-params": "log-level=none:lossless=1:bframes=0:pools=none"}
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb))
        frame.pts, frame.time_base = 0, Fraction(1)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    content = file.getvalue()
    parts = []
    for kind in (b"hvcC", b"mdat"):
        at = content.index(kind)
        (size,) = struct.unpack_from(">I", content, at - 4)
        parts.append(content[at + 4 : at - 4 + size])
    return parts[0], parts[1]


def heic_file(
    rgb: Pixels,
    tile: int | None = None,
    *,
    turns: int = 0,
    mirror: int | None = None,
    crop: Sequence[int] | None = None,
    kind: bytes = b"hvc1",
    wide: bool = False,
) -> bytes:
    """A picture (height, width, 3) as HEIC.

    Parameters
    ----------
    tile : side of the tiles of a grid, the last ones padded; None: one frame, no grid
    turns : quarter turns anticlockwise that a reader makes
    mirror : then 0: upside down, 1: left to right
    crop : left, top, width, height of the part that is shown, before both
    wide : the grid's size as 32-bit numbers, data of the grid in a box of its own
    """
    height, width = rgb.shape[:2]
    side = tile or 0
    rows, columns = (-(-height // side), -(-width // side)) if side else (1, 1)
    padded = (
        np.pad(rgb, ((0, rows * side - height), (0, columns * side - width), (0, 0)), "edge")
        if side
        else rgb
    )
    size = (side, side) if side else (height, width)
    frames = [
        hevc(
            np.ascontiguousarray(
                padded[y * size[0] : (y + 1) * size[0], x * size[1] : (x + 1) * size[1]]
            )
        )
        for y in range(rows)
        for x in range(columns)
    ]
    number = ">BBBBII" if wide else ">BBBBHH"
    grid = struct.pack(number, 0, int(wide), rows - 1, columns - 1, width, height)
    tiles = range(2, 2 + len(frames)) if side else range(PRIMARY, PRIMARY + 1)

    properties = [
        box(b"hvcC", frames[0][0]),
        full(b"ispe", struct.pack(">II", size[1], size[0])),
        full(b"ispe", struct.pack(">II", width, height)),
    ]
    own = [3] if side else [1, 2]
    if crop is not None:
        left, top, shown, tall = crop
        offsets = (2 * left + shown - width, 2, 2 * top + tall - height, 2)
        properties.append(box(b"clap", struct.pack(">IIIIiIiI", shown, 1, tall, 1, *offsets)))
        own.append(len(properties))
    if turns:
        properties.append(box(b"irot", bytes([turns])))
        own.append(len(properties))
    if mirror is not None:
        properties.append(box(b"imir", bytes([mirror])))
        own.append(len(properties))
    of_items = {PRIMARY: own} | ({each: [1, 2] for each in tiles} if side else {})
    kinds = {PRIMARY: b"grid" if side else kind} | ({each: kind for each in tiles} if side else {})
    infos = [
        full(b"infe", struct.pack(">HH4sB", each, 0, name, 0), version=2)
        for each, name in kinds.items()
    ]
    ipma = struct.pack(">I", len(of_items)) + b"".join(
        struct.pack(">HB", each, len(numbers)) + bytes(numbers)
        for each, numbers in of_items.items()
    )
    references = struct.pack(">HH", PRIMARY, len(tiles)) + b"".join(
        struct.pack(">H", each) for each in tiles
    )

    def meta(begin: int) -> bytes:
        places, at = [], begin
        for each, (_, data) in zip(tiles, frames, strict=True):
            places.append((each, 0, at, len(data)))
            at += len(data)
        if side:
            places.append((PRIMARY, 1, 0, len(grid)) if wide else (PRIMARY, 0, at, len(grid)))
        iloc = struct.pack(">HH", 0x4400, len(places)) + b"".join(
            struct.pack(">HHHHII", each, method, 0, 1, *where) for each, method, *where in places
        )
        return full(
            b"meta",
            full(b"hdlr", struct.pack(">I4s", 0, b"pict"), bytes(13)),
            full(b"pitm", struct.pack(">H", PRIMARY)),
            full(b"iloc", iloc, version=1),
            full(b"iinf", struct.pack(">H", len(infos)), *infos),
            *([full(b"iref", box(b"dimg", references))] if side else []),
            box(b"iprp", box(b"ipco", *properties), full(b"ipma", ipma)),
            *([box(b"idat", grid)] if wide else []),
        )

    head = box(b"ftyp", b"heic", bytes(4), b"mif1heic")
    begin = len(head) + len(meta(0)) + 8
    rest = b"" if wide or not side else grid
    return head + meta(begin) + box(b"mdat", *(data for _, data in frames), rest)
