"""Decodes files and bytes: starts `confined.media`, and checks what comes back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.confined.limits import command, environment, start_folder
from gemma4_compile.confined.media import MEMORY_BYTES, SECONDS
from gemma4_compile.errors import MediaError, UsageError, printable
from gemma4_compile.media.limits import INSTALL
from gemma4_compile.system.limits import took_too_long
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.system.regular_files import open_regular

Pixels = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]
Fit = tuple[int, int]
"""Budget and block: a picture is scaled to what a model takes while it is decoded."""

# NumPy starts a thread for every core, and 64 of them take all memory that a decoder may.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
_GRACE_SECONDS = 10  # until the process runs, and for one that a busy machine does not let run
_NAMES = {"PIL": "Pillow", "av": "PyAV", "_soundfile": "soundfile"}


@dataclass(frozen=True)
class Frame:
    """A frame of a video: its time from the beginning, and its pixels (height, width, 3)."""

    seconds: float
    pixels: Pixels


def decode_image(source: bytes | Path, fit: Fit | None = None) -> Pixels:
    """RGB (height, width, 3) of a picture: upright, its first frame, transparency on white.

    Parameters
    ----------
    source : the content of a file, or its path

    Raises
    ------
    MediaError
        If it is no picture, damaged, or beyond a limit of size, memory or time.
    UsageError
        If Pillow is not installed.
    """
    header, content = _decode("picture", source, fit)
    return _pixels(content, header["width"], header["height"])


def decode_audio(source: bytes | Path) -> Samples:
    """Samples of a sound of up to 30 s: one channel at 16 kHz; errors as `decode_image`."""
    header, content = _decode("sound", source, None)
    samples = np.frombuffer(content, "<f4").astype(np.float32)
    if len(samples) != header["samples"]:
        raise _broken("sound")
    return samples


def decode_video(source: bytes | Path, fit: Fit | None = None) -> list[Frame]:
    """32 frames of a video at even distances, or all of a shorter one; errors as `decode_image`."""
    header, content = _decode("video", source, fit)
    frames, begin = [], 0
    described = header["frames"]
    assert isinstance(described, list), "as `media.video` sends it"
    for width, height, seconds in described:
        end = begin + width * height * 3
        frames.append(Frame(seconds, _pixels(content[begin:end], width, height)))
        begin = end
    return frames


def check_readable(path: Path) -> None:
    """MediaError if there is no regular file of this name that can be read."""
    try:
        open_regular(path).close()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _pixels(content: bytes, width: object, height: object) -> Pixels:
    assert isinstance(width, int), "as the process sends it"
    assert isinstance(height, int), "as the process sends it"
    if len(content) != width * height * 3:
        raise _broken("picture")
    return np.frombuffer(content, np.uint8).reshape(height, width, 3)


def _decode(kind: str, source: bytes | Path, fit: Fit | None) -> tuple[Mapping[str, object], bytes]:
    if isinstance(source, bytes):
        return _run(kind, {"fit": fit}, None, source)
    name = f"`{printable(str(source))}`"
    try:
        with open_regular(source) as file:
            return _run(kind, {"fit": fit}, name, file.fileno())
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise _unreadable(source, error) from error


def _run(
    kind: str, options: Mapping[str, object], name: str | None, given: bytes | int
) -> tuple[Mapping[str, object], bytes]:
    try:
        with process_noted(f"confined: {kind}"):
            done = subprocess.run(
                command("media", kind, json.dumps(options)),
                cwd=start_folder(),
                env=environment(**_ONE_THREAD),
                input=given if isinstance(given, bytes) else None,
                stdin=given if isinstance(given, int) else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # warnings of the decoders
                timeout=SECONDS[kind] + _GRACE_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise _failed(name, f"to decode this {kind} takes more than {SECONDS[kind]} s") from error
    if took_too_long(done.returncode):
        raise _failed(name, f"to decode this {kind} takes more than {SECONDS[kind]} s")
    line, _, content = done.stdout.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError as error:
        raise _broken(kind, name) from error
    if "missing" in header:
        missing = _NAMES.get(header["missing"], header["missing"])
        raise UsageError(
            f"pictures, sounds and videos need packages that are not installed here: {missing}",
            hint=INSTALL,
        )
    if "error" in header:
        raise _failed(name, header["error"], header.get("hint"))
    return header, content


def _unreadable(path: Path, error: OSError | ValueError) -> MediaError:
    why = error.strerror if isinstance(error, OSError) else error
    return MediaError(f"cannot read `{printable(str(path))}`: {why}", hint="check the file's name")


def _failed(name: str | None, why: str, hint: str | None = None) -> MediaError:
    message = why if name is None else f"{name}: {why}"
    return MediaError(message, hint=hint or "give another file, or a smaller one")


def _broken(kind: str, name: str | None = None) -> MediaError:
    memory = f"{MEMORY_BYTES >> 30} GiB of memory"
    return _failed(name, f"to decode this {kind} takes more than {memory}, or breaks its decoder")
