"""Decodes a HEIC picture, as phones write it, with PyAV; runs in the process of `confined.media`.

Such a picture is a grid of tiles, each an HEVC frame of its own. FFmpeg's demuxer hands out single
tiles, so the file's boxes are read here. Thumbnails, depth maps and alpha planes are left.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import BinaryIO

import av
from av.video.codeccontext import VideoCodecContext
from PIL import Image

from gemma4_compile.errors import MediaError
from gemma4_compile.media.heif_boxes import Item, Numbers, read_items
from gemma4_compile.media.limits import MAX_PICTURE_BYTES, MAX_PIXELS, MAX_SIDE

_SAVE = "save it as JPEG or PNG"
_TURNS = (
    *(None, Image.Transpose.ROTATE_90),
    *(Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270),
)
_MIRRORS = (Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.FLIP_LEFT_RIGHT)


def read(file: BinaryIO) -> Image.Image:
    """The primary picture in RGB, turned, mirrored and cropped as the file says.

    Raises
    ------
    MediaError
        If it is damaged, too large, or coded in another way than HEVC.
    """
    file.seek(0)
    try:
        number, items = read_items(file.read(MAX_PICTURE_BYTES))
        item = items[number]
        image = _grid(item, items) if item.kind == b"grid" else _tile(item)
        return _transformed(image, item)
    except (struct.error, KeyError, ZeroDivisionError, av.FFmpegError) as error:
        raise MediaError(f"the HEIC picture is damaged: {error}", hint=_SAVE) from error


def _size(item: Item) -> tuple[int, int]:
    read = Numbers(item.property_of(b"ispe"))
    read.take(4)
    width, height = read.number(4), read.number(4)
    _check(width, height)
    return width, height


def _check(width: int, height: int) -> None:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise MediaError(
            f"the picture has {width} x {height} pixels; expected sides of 1 to {MAX_SIDE}, and at "
            f"most {MAX_PIXELS} in all",
            hint="make it smaller: a model sees at most 2.6 million pixels of it",
        )


def _tile(item: Item) -> Image.Image:
    if item.kind != b"hvc1":
        kind = item.kind.decode("latin-1")
        raise MediaError(f"the HEIC picture is coded as {kind!r}, not as HEVC", hint=_SAVE)
    _size(item)
    codec = VideoCodecContext.create("hevc", "r")
    codec.extradata = item.property_of(b"hvcC")
    codec.thread_count = 1
    frames = [*codec.decode(av.Packet(item.data)), *codec.decode(None)]
    if not frames:
        raise struct.error("a tile without a frame")
    _check(frames[0].width, frames[0].height)
    image: Image.Image = frames[0].to_image(threads=1)  # type: ignore[no-untyped-call]
    return image.convert("RGB")


def _grid(item: Item, items: Mapping[int, Item]) -> Image.Image:
    read = Numbers(item.data)
    read.take(1)
    size = 4 if read.number(1) & 1 else 2
    rows, columns = read.number(1) + 1, read.number(1) + 1
    width, height = read.number(size), read.number(size)
    _check(width, height)
    if len(item.inputs) != rows * columns:
        raise struct.error(f"{len(item.inputs)} tiles of {rows * columns}")
    whole = Image.new("RGB", (width, height))
    across = down = 0
    for index, number in enumerate(item.inputs):
        tile = _tile(items[number])
        if not index:
            across, down = tile.size
            if across * columns < width or down * rows < height:
                raise struct.error("the tiles do not cover the picture")
        if tile.size != (across, down):
            raise struct.error("tiles of several sizes")
        whole.paste(tile, (index % columns * across, index // columns * down))
    return whole


def _transformed(image: Image.Image, item: Item) -> Image.Image:
    for kind, content in item.properties:
        if kind == b"irot":
            turn = _TURNS[content[0] & 3] if content else None
            image = image if turn is None else image.transpose(turn)
        elif kind == b"imir" and content:
            image = image.transpose(_MIRRORS[content[0] & 1])
        elif kind == b"clap":
            image = image.crop(_aperture(image, content))
    return image


def _aperture(image: Image.Image, content: bytes) -> tuple[int, int, int, int]:
    """Box of the part that is shown: its size, and how far its middle is from the picture's."""
    numbers = struct.unpack(">IIIIiIiI", content)
    width, height, right, down = (Fraction(*numbers[at : at + 2]) for at in range(0, 8, 2))
    left = right + Fraction(image.width - width, 2)
    top = down + Fraction(image.height - height, 2)
    box = (round(left), round(top), round(left + width), round(top + height))
    if not (0 <= box[0] < box[2] <= image.width and 0 <= box[1] < box[3] <= image.height):
        raise struct.error("the part that is shown lies outside")
    return box
