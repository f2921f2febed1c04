"""What a file is by its first bytes, for messages: as what it can be given, or saved."""

from __future__ import annotations

import re
from typing import BinaryIO

_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_PICTURES = ("PNG", "JPEG", "GIF", "WebP", "BMP", "TIFF", "AVIF", "HEIC", "JPEG XL", "PPM")
_SOUNDS = ("WAV", "FLAC", "MP3", "Ogg", "AIFF", "AU", "CAF", "AAC", "AMR", "M4A")
_FILMS = ("MP4 or MOV", "WebM or Matroska", "AVI", "FLV", "MPEG", "Windows Media")
_BEGINNINGS = (
    ("PNG", rb"\x89PNG"),
    ("JPEG", rb"\xff\xd8\xff"),
    ("GIF", rb"GIF8"),
    ("WebP", rb"RIFF....WEBP"),
    ("BMP", rb"BM.{12}[\x0c-\x7c]\0\0\0"),
    ("TIFF", rb"II\*\0|MM\0\*"),
    ("AVIF", rb"....ftypavi[fs]"),
    ("HEIC", rb"....ftyp(" + b"|".join(_HEIC) + rb")"),
    ("JPEG XL", rb"\xff\x0a|\0\0\0\x0cJXL "),
    ("PPM", rb"P[1-6]\s"),
    ("WAV", rb"(RIFF|RF64)....WAVE|riff\x2e\x91\xcf\x11"),
    ("FLAC", rb"fLaC"),
    ("AAC", rb"\xff[\xf0\xf1\xf8\xf9]"),
    ("MP3", rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]"),
    ("Ogg", rb"OggS"),
    ("AIFF", rb"FORM....AIF[FC]"),
    ("AU", rb"\.snd"),
    ("CAF", rb"caff"),
    ("AMR", rb"#!AMR"),
    ("M4A", rb"....ftypM4[AB]"),
    ("MP4 or MOV", rb"....(ftyp|moov|mdat|wide|free)"),
    ("WebM or Matroska", rb"\x1a\x45\xdf\xa3"),
    ("AVI", rb"RIFF....AVI "),
    ("FLV", rb"FLV\x01"),
    ("MPEG", rb"\0\0\x01[\xba\xb3]|\x47.{187}\x47"),
    ("Windows Media", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    ("PDF", rb"%PDF"),
    ("a ZIP archive", rb"PK\x03\x04"),
    ("text like SVG or HTML", rb"(\xef\xbb\xbf)?\s*<"),
)
_AS_PICTURE = "give it as a picture: --image, or `image_url` over the API"
AS_SOUND = "give it as a sound: --audio, or `input_audio` over the API"
AS_VIDEO = "give it as a video, --video of gemma4-chat; over the API send pictures of it"
_LONGEST = 256


def kind_of_file(file: BinaryIO) -> str | None:
    """The name of a file's kind, None if its first bytes tell nothing."""
    file.seek(0)
    begin = file.read(_LONGEST)
    for name, pattern in _BEGINNINGS:
        if re.match(pattern, begin, re.DOTALL):
            return name
    return None


def is_picture(kind: str | None) -> bool:
    """Return whether a kind is of pictures, be they read here or not."""
    return kind in _PICTURES


def is_sound(kind: str | None) -> bool:
    """Return whether a kind is of sounds, be they read here or not."""
    return kind in _SOUNDS


def is_still(kind: str | None) -> bool:
    """Return whether a kind is of pictures that are no video; a GIF may be both."""
    return is_picture(kind) and kind != "GIF"


def named(kind: str | None) -> str:
    """The kind as the end of a message, or nothing."""
    return f": it is {kind}" if kind is not None else ""


def better_given(kind: str | None, asked: str) -> str | None:
    """As what else a file of this kind can be given than as it was, if that helps.

    Parameters
    ----------
    asked : `picture`, `sound` or `video`
    """
    if kind in _PICTURES and asked != "picture":
        return _AS_PICTURE
    if kind in _SOUNDS and asked != "sound":
        return AS_SOUND
    if kind in _FILMS and asked == "picture":
        return f"{AS_VIDEO}; what has sound alone: --audio, or `input_audio`"
    return None
