"""Decodes a sound with libsndfile and soxr; runs in the process of `confined.media`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from gemma4_compile.errors import MediaError
from gemma4_compile.media.limits import (
    MAX_CHANNELS,
    MAX_RATE_HZ,
    MAX_SAMPLES,
    MIN_RATE_HZ,
    SAMPLE_RATE_HZ,
    SLACK_S,
)

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "MP3", "OGG", "AIFF", "AU", "CAF", "W64")
_FORMATS_HINT = "give a WAV, FLAC, MP3 or Ogg file"
_DAMAGED = "save it again from the program that made it"
_LIMIT_S = MAX_SAMPLES / SAMPLE_RATE_HZ
_CUT = f"cut it to {_LIMIT_S:g} s, or send it in several parts"
_COUNTED = ("WAV", "WAVEX", "RF64", "FLAC", "AIFF", "AU", "CAF", "W64")  # by their headers
_UNKNOWN_BYTES = 0x7FFF_0000  # from here on: of a WAV whose length its writer did not know yet
_MISCOUNTED_BYTES = 1024  # some writers count a WAV's header, too, or a last block
_MOST_CHUNKS = 1000
_LOUDEST = 16.0  # float samples beyond are no sound between -1 and 1, but of another scale


def decode(file: BinaryIO, options: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
    """Decode to one channel of float32 at 16 kHz, as transformers' `load_audio` does.

    Returns
    -------
    rate and seconds of the file; the samples
    """
    del options
    if not file.seek(0, 2):
        raise MediaError("the sound's file is empty", hint=_FORMATS_HINT)
    file.seek(0)
    try:
        with soundfile.SoundFile(file) as sound:
            samples, rate = _read(sound), sound.samplerate
            missing = _missing_bytes(file) if sound.format in ("WAV", "WAVEX") else 0
    except soundfile.LibsndfileError as error:
        raise MediaError(
            f"this is no sound that is read here, or damaged: {error.error_string}",
            hint=_FORMATS_HINT,
        ) from error
    if missing > _MISCOUNTED_BYTES:
        raise MediaError(
            f"the sound is damaged: its file ends {missing} bytes before its header says",
            hint=_DAMAGED,
        )
    seconds = len(samples) / rate
    if rate != SAMPLE_RATE_HZ:
        count = math.ceil(len(samples) * SAMPLE_RATE_HZ / rate)
        resampled = soxr.resample(samples, rate, SAMPLE_RATE_HZ, quality="HQ")[:count]
        samples = np.pad(resampled, (0, count - len(resampled)))
    samples = samples[:MAX_SAMPLES].astype("<f4")
    return {"rate": rate, "seconds": seconds, "samples": len(samples)}, samples.tobytes()


def _read(sound: soundfile.SoundFile) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Mean of the channels; of a sound that is too long no more than that is decoded."""
    if sound.format not in FORMATS:
        raise MediaError(f"sounds of format {sound.format} are not read here", hint=_FORMATS_HINT)
    rate = sound.samplerate
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise MediaError(
            f"the sound has {rate} samples a second; expected {MIN_RATE_HZ} to {MAX_RATE_HZ}",
            hint=_DAMAGED,
        )
    if sound.channels > MAX_CHANNELS:
        raise MediaError(
            f"the sound has {sound.channels} channels; expected at most {MAX_CHANNELS}",
            hint="mix it down to one",
        )
    most = int((_LIMIT_S + SLACK_S) * rate)
    counted = sound.format in _COUNTED
    if counted and sound.frames > most:
        raise _too_long(f"{sound.frames / rate:,.1f} s")
    # In one piece: between two, soundfile seeks to where it is, and an MP3 clicks there.
    channels = sound.read(most + 1, dtype="float32", always_2d=True)
    count = len(channels)
    if count > most:
        raise _too_long(f"more than {_LIMIT_S:g} s")
    if not count:
        raise MediaError("the sound has no samples", hint=_DAMAGED)
    if counted and count < sound.frames:
        raise MediaError(
            f"the sound is damaged: it ends after {count} of {sound.frames} samples", hint=_DAMAGED
        )
    samples = channels.mean(axis=1, dtype=np.float32)
    loudest = float(np.abs(samples).max())
    if not loudest <= _LOUDEST:  # NaN is not, either
        raise MediaError(
            f"the sound has samples of magnitude {loudest:g}; expected -1 to 1",
            hint="save it with 16-bit samples",
        )
    return samples


def _missing_bytes(file: BinaryIO) -> int:
    """Bytes that a WAV announces and does not have: libsndfile takes what there is, silently."""
    size = file.seek(0, 2)
    file.seek(12)
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        if head[:4] == b"data" and length < _UNKNOWN_BYTES:
            return max(0, file.tell() + length - size)
        if len(head) < 8 or head[:4] == b"data":
            break
        file.seek(length + length % 2, 1)
    return 0


def _too_long(found: str) -> MediaError:
    return MediaError(f"the sound lasts {found}; expected at most {_LIMIT_S:g} s", hint=_CUT)
