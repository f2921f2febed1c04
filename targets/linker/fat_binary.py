"""Several images of the same kernels in one, of which CUDA's driver takes what suits the GPU.

It loads the image of the newest architecture that the GPU has the instructions of. The form is what
`fatbinary` of CUDA 13 writes for PTX that it does not compress: a header, and behind it each image
with one of its own. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

HEADER = struct.Struct("<IHHQ")  # what it is, version, own bytes, bytes of the images
IMAGE = struct.Struct("<HHIQIIHHIIIQQQQQ")
MAGIC, VERSION = 0xBA55ED50, 1
PTX, IMAGE_VERSION = 1, 0x101
IS_64_BIT, IS_LINUX = 1, 16
IS_FOR_ONE = 1 << 20  # of `sm_90a`: no later GPU runs it
OPTIONS_AT = 64  # within an image's header: options of ptxas, of which there are none
ALIGNMENT = 8


def fat_binary(images: Mapping[str, bytes]) -> bytes:
    """The form with all images.

    Parameters
    ----------
    images : PTX by its architecture, such as `sm_75`
    """
    body = b"".join(_image(name, images[name]) for name in sorted(images))
    return HEADER.pack(MAGIC, VERSION, HEADER.size, len(body)) + body


def _image(architecture: str, text: bytes) -> bytes:
    data = text.rstrip(b"\0") + b"\0"  # the driver reads up to a zero
    data += b"\0" * (-len(data) % ALIGNMENT)
    major, minor = _language_version(text)
    return (
        IMAGE.pack(
            PTX,
            IMAGE_VERSION,
            IMAGE.size,
            len(data),
            0,  # bytes before they were compressed
            OPTIONS_AT,
            minor,
            major,
            int(architecture.removeprefix("sm_").removesuffix("a")),
            0,  # name of a source file: where, how long
            0,
            IS_64_BIT | IS_LINUX | (IS_FOR_ONE if architecture.endswith("a") else 0),
            0,
            0,
            OPTIONS_AT + ALIGNMENT,
            0,
        )
        + data
    )


def _language_version(text: bytes) -> tuple[int, int]:
    """The version of PTX that a text says it is in."""
    word = text.split(b".version", 1)[1].split(None, 1)[0]
    major, minor = word.split(b".")
    return int(major), int(minor)
