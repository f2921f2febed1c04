"""Decodes a sound with libsndfile or PyAV, and soxr; runs in the process of `confined.media`."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from gemma4_compile.errors import MediaError
from gemma4_compile.media.file_kinds import better_given, is_still, kind_of_file, named
from gemma4_compile.media.limits import MAX_SAMPLES, SAMPLE_RATE_HZ
from gemma4_compile.media.samples import (
    DAMAGED,
    LIMIT_S,
    Samples,
    check_form,
    checked,
    most_samples,
    too_long,
)

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "MP3", "OGG", "AIFF", "AU", "CAF", "W64")
_FORMATS_HINT = "give a WAV, FLAC, MP3, Ogg, M4A, AAC or WebM file"
_COUNTED = ("WAV", "WAVEX", "RF64", "FLAC", "AIFF", "AU", "CAF", "W64")  # by their headers
_UNKNOWN_BYTES = 0x7FFF_0000  # from here on: of a WAV whose length its writer did not know yet
_MISCOUNTED_BYTES = 1024  # some writers count a WAV's header, too, or a last block
_MOST_CHUNKS = 1000
_LONGEST_HEAD = 1 << 16


def decode(file: BinaryIO, options: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
    """Decode to one channel of float32 at 16 kHz, as transformers' `load_audio` does.

    Returns
    -------
    rate and seconds of the file; the samples
    """
    del options
    if not file.seek(0, 2):
        raise MediaError("the sound's file is empty", hint=_FORMATS_HINT)
    file = _with_its_length(file)
    file.seek(0)
    try:
        sound = soundfile.SoundFile(file)
    except soundfile.LibsndfileError as error:
        samples, rate = _read_otherwise(file, error)
    else:
        samples, rate = _read(sound), sound.samplerate
        _check_whole(file, sound.format)
    seconds = len(samples) / rate
    if rate != SAMPLE_RATE_HZ:
        count = math.ceil(len(samples) * SAMPLE_RATE_HZ / rate)
        resampled = soxr.resample(samples, rate, SAMPLE_RATE_HZ, quality="HQ")[:count]
        samples = np.pad(resampled, (0, count - len(resampled)))
    samples = samples[:MAX_SAMPLES].astype("<f4")
    return {"rate": rate, "seconds": seconds, "samples": len(samples)}, samples.tobytes()


def _read(sound: soundfile.SoundFile) -> Samples:
    """Mean of the channels; of a sound that is too long no more than that is decoded."""
    if sound.format not in FORMATS:
        raise MediaError(f"sounds of format {sound.format} are not read here", hint=_FORMATS_HINT)
    rate = sound.samplerate
    check_form(rate, sound.channels)
    most = most_samples(rate)
    counted = sound.format in _COUNTED and not sound.subtype.startswith("MPEG")
    if counted and sound.frames > most:
        raise too_long(f"{sound.frames / rate:,.1f} s")
    # In one piece: between two, soundfile seeks to where it is, and an MP3 clicks there.
    try:
        channels = sound.read(most + 1, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise MediaError(f"the sound is damaged: {error.error_string}", hint=DAMAGED) from error
    count = len(channels)
    if count > most:
        raise too_long(f"more than {LIMIT_S:g} s")
    if count and counted and count < sound.frames:
        raise MediaError(
            f"the sound is damaged: it ends after {count} of {sound.frames} samples", hint=DAMAGED
        )
    return checked(channels.mean(axis=1, dtype=np.float32))


def _read_otherwise(file: BinaryIO, error: soundfile.LibsndfileError) -> tuple[Samples, int]:
    """What libsndfile does not read, with PyAV; MediaError if that does not, either."""
    from gemma4_compile.media import sound_track  # PyAV is needed for these alone

    kind = kind_of_file(file)
    found = None if is_still(kind) else sound_track.read(file)
    if found is None:
        raise MediaError(
            f"this is no sound that is read here, or damaged{named(kind)} ({error.error_string})",
            hint=better_given(kind, "sound") or _FORMATS_HINT,
        ) from error
    return found


def _with_its_length(file: BinaryIO) -> BinaryIO:
    """A WAV that was written into a pipe, whose header counts no samples: with those that follow.

    Not so where other chunks follow, as they do where there are none.
    """
    file.seek(0)
    if not re.match(rb"RIFF....WAVE", file.read(12), re.DOTALL):
        return file
    at, announced = _data_chunk(file, _LONGEST_HEAD // 8) or (0, 0)
    if announced or not 0 < at <= _LONGEST_HEAD:
        return file
    file.seek(at + 4)
    next_chunk = int.from_bytes(file.read(4), "little") + 8
    behind = file.seek(0, 2) - at
    if behind <= 0 or next_chunk == behind:
        return file
    file.seek(0)
    counted = io.BytesIO(file.read())
    counted.seek(at - 4)
    counted.write(min(behind, _UNKNOWN_BYTES - 1).to_bytes(4, "little"))
    return counted


def _check_whole(file: BinaryIO, form: str) -> None:
    """MediaError for a WAV that was cut."""
    missing = _missing_bytes(file) if form in ("WAV", "WAVEX") else 0
    if missing > _MISCOUNTED_BYTES:
        raise MediaError(
            f"the sound is damaged: its file ends {missing} bytes before its header says",
            hint=DAMAGED,
        )


def _missing_bytes(file: BinaryIO) -> int:
    """Bytes that a WAV announces and does not have: libsndfile takes what there is, silently."""
    found = _data_chunk(file, _MOST_CHUNKS)
    if found is None or found[1] >= _UNKNOWN_BYTES:
        return 0
    return max(0, sum(found) - file.seek(0, 2))


def _data_chunk(file: BinaryIO, most: int) -> tuple[int, int] | None:
    """Where a WAV's samples begin, and how many bytes of them it announces.

    None where none of the first `most` chunks has any.
    """
    file.seek(12)
    for _ in range(most):
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] == b"data":
            return file.tell(), length
        if len(head) < 8:
            break
        file.seek(length + length % 2, 1)
    return None
