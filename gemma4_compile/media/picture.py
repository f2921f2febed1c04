"""Decodes a picture with Pillow; runs in the process of `confined.media`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import BinaryIO

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from gemma4_compile.errors import MediaError
from gemma4_compile.media.file_kinds import better_given, kind_of_file, named
from gemma4_compile.media.limits import MAX_PICTURE_BYTES, MAX_PIXELS, MAX_SIDE
from gemma4_compile.media.resample import resampled
from gemma4_compile.media.sizes import target_size

# Not all that Pillow reads: EPS starts a program, and rare formats have rarely read decoders.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
_FORMATS_HINT = "give a PNG, JPEG, HEIC, WebP, GIF, BMP, TIFF or AVIF file"
_SMALLER = "make it smaller: a model sees at most 2.6 million pixels of it"
_DAMAGED = "save it again from the program that made it"
_STRIP_ROWS = 1024
# What Pillow makes of a PNG's levels, by their form; not of the transparent one.
_LEVELS: Mapping[object, Callable[[int], int]] = {
    "L;2": lambda value: 85 * value,
    "L;4": lambda value: 17 * value,
    "I;16B": lambda value: int(value / 257 + 0.5),  # as _from_deep does it
    "RGB;16B": lambda value: value >> 8,
}
_WHITE = (255, 255, 255, 255)


def decode(file: BinaryIO, options: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
    """Decode the first frame to upright RGB, transparency on white.

    Parameters
    ----------
    options : `fit`: None, or budget and block of the size that it is scaled to

    Returns
    -------
    width, height and the file's own size; the pixels, row by row
    """
    warnings.simplefilter("ignore")  # of damaged metadata; what matters is raised
    Image.MAX_IMAGE_PIXELS = None  # the limits here are narrower, and no warnings
    image = _open(file)
    form, source = image.format or "HEIC", image.size
    try:
        upright = _upright(image)
        rgb = fitted(_rgb(upright), options.get("fit"))
    except MediaError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # of Pillow's decoders: OSError, SyntaxError, ValueError, ...
        raise MediaError(
            f"the {form} picture of {_size(source)} is damaged: {error}", hint=_DAMAGED
        ) from error
    header = {"width": rgb.width, "height": rgb.height, "source": list(source)}
    return header, rgb.tobytes()


def fitted(image: Image.Image, fit: object) -> Image.Image:
    """Scale an RGB picture to what a model takes; `fit` as in `decode`."""
    if fit is None:
        return image
    assert isinstance(fit, (list, tuple)), "of two numbers"
    return resampled(image, target_size(image.width, image.height, *fit))


def check_size(width: int, height: int, what: str) -> None:
    """MediaError for a size that is not decoded."""
    found = f"the {what} has {_size((width, height))} pixels"
    if width < 1 or height < 1:
        raise MediaError(f"{found}, so there is nothing to see", hint=_DAMAGED)
    if max(width, height) > MAX_SIDE:
        raise MediaError(f"{found}; expected sides of at most {MAX_SIDE}", hint=_SMALLER)
    if width * height > MAX_PIXELS:
        raise MediaError(f"{found}; expected at most {MAX_PIXELS} in all", hint=_SMALLER)


def _open(file: BinaryIO) -> Image.Image:
    size = file.seek(0, 2)
    file.seek(0)
    if not size:
        raise MediaError("the picture's file is empty", hint=_FORMATS_HINT)
    if size > MAX_PICTURE_BYTES:
        raise MediaError(
            f"the picture's file has {size} bytes; expected at most {MAX_PICTURE_BYTES}",
            hint=_SMALLER,
        )
    Image.init()
    known = [name for name in FORMATS if name in Image.OPEN]  # a build may be without some
    try:
        image = Image.open(file, formats=known)
    except UnidentifiedImageError as error:
        kind = kind_of_file(file)
        if kind == "HEIC":
            from gemma4_compile.media import heif  # PyAV is needed for these alone

            return heif.read(file)
        raise MediaError(
            f"this is no picture that is read here{named(kind)}",
            hint=better_given(kind, "picture") or _FORMATS_HINT,
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # of a plugin that reads a damaged header
        raise MediaError(f"the picture is damaged: {error}", hint=_DAMAGED) from error
    check_size(*image.size, "picture")
    _note_clear(image)
    return image


def _note_clear(image: ImageFile.ImageFile) -> None:
    """Name the transparent colour of a PNG by the levels that its pixels will have."""
    clear = image.info.get("transparency")
    level = _LEVELS.get(image.tile[0].args) if image.format == "PNG" and image.tile else None
    if clear is None or level is None:
        return
    image.info["transparency"] = (
        tuple(map(level, clear)) if isinstance(clear, tuple) else level(clear)
    )


def _upright(image: Image.Image) -> Image.Image:
    """Turn the picture as its EXIF data say; damaged ones say nothing."""
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # of the data's parser
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _from_deep(image)
    has_alpha = "A" in image.getbands() or image.info.get("transparency") is not None
    if not has_alpha:
        return image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    for top in range(0, image.height, _STRIP_ROWS):  # whole copies would take four times the memory
        box = (0, top, image.width, min(top + _STRIP_ROWS, image.height))
        strip = image.crop(box)
        strip.info = dict(image.info)
        strip = strip.convert("RGBA")
        background = Image.new("RGBA", strip.size, _WHITE)
        rgb.paste(Image.alpha_composite(background, strip).convert("RGB"), box)
    return rgb


def _from_deep(image: Image.Image) -> Image.Image:
    """Shades of grey of 16 bits as 8 bits; MediaError for what has more."""
    whole = image if image.mode == "F" else image.convert("I")  # big-endian ones know no extremes
    lowest, highest = whole.getextrema()
    assert isinstance(lowest, (int, float)), "one band"
    assert isinstance(highest, (int, float)), "one band"
    if whole.mode == "F" or lowest < 0 or highest > 65_535:
        raise MediaError(
            f"the picture has {'float' if whole.mode == 'F' else '32-bit'} pixels",
            hint="save it with 8 or 16 bits a channel",
        )
    return whole.point(lambda value: value * (1 / 257) + 0.5).convert("L")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
