"""The log-mel spectrum that the audio tower begins with, as matmuls.

Window, cosines and mel filters are constants that are computed here, once, in float64: cosines of a
GPU are too coarse for them.

References
----------
transformers 5.24.0, `models/gemma4/feature_extraction_gemma4.py`
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.audio.sizes import FRAME, HOP, mel_frames
from gemma4_compile.model_spec.config.audio import SAMPLE_RATE_HZ
from gemma4_compile.operators.audio_features import (
    LogMel,
    Magnitude,
    SoundFrames,
    WindowedTransform,
)
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.operators.types import Index

Float32Array = npt.NDArray[np.float32]

BANDS = 128
TRANSFORM = 512
BINS = TRANSFORM // 2  # the one of half the sample rate is in no band
MAX_FREQUENCY_HZ = SAMPLE_RATE_HZ / 2
FLOOR = 1e-3


def cosines() -> Float32Array:
    """The circle in TRANSFORM steps."""
    return np.cos(2.0 * np.pi * np.arange(TRANSFORM) / TRANSFORM).astype(np.float32)


def window() -> Float32Array:
    """Hann's window of a frame."""
    return (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)


def windowed_transform(samples: nn.Tensor) -> nn.Tensor:
    """The Fourier transform of a windowed frame: (2 * BINS, FRAME), all real parts first."""
    operator = WindowedTransform(BINS, FRAME, TRANSFORM)
    args = [samples, nn.Tensor.from_const(cosines()), nn.Tensor.from_const(window())]
    return emit(operator, args, [((2 * BINS, FRAME), "float32")])[0]


def mel_filters() -> Float32Array:
    """Triangles of equal width on HTK's mel scale: (BANDS, BINS)."""
    highest = 2595.0 * math.log10(1.0 + MAX_FREQUENCY_HZ / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, highest, BANDS + 2) / 2595.0) - 1.0)
    frequency = np.arange(BINS) * (SAMPLE_RATE_HZ / TRANSFORM)
    distance = edges[:, None] - frequency
    width = np.diff(edges)[:, None]
    rising, falling = -distance[:-2] / width[:-1], distance[2:] / width[1:]
    return np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)


def _matmul(x: nn.Tensor, matrix: nn.Tensor) -> nn.Tensor:
    rows, cols = map(int, matrix.shape)
    operator = Linear(CHUNK, WeightLayout(0, "float32", 0, cols, (rows,)), "float32")
    return emit(operator, [x, matrix], [((x.shape[0], rows), "float32")])[0]


def sound_frames(
    samples: nn.Tensor, rows: Index, width: int, hop: int, before: int, dtype: str
) -> nn.Tensor:
    """Frames of a sound: (rows, width) in `dtype`."""
    operator = SoundFrames(width, hop, before, dtype)
    return emit(operator, [samples], [((rows, width), dtype)])[0]


def log_mel(samples: nn.Tensor) -> nn.Tensor:
    """The spectrum of a sound's frames: (count,) -> (frames, BANDS) float32."""
    frames = mel_frames(samples.shape[0])
    x = sound_frames(samples, frames, FRAME, HOP, FRAME // 2, "float32")
    spectrum = _matmul(x, windowed_transform(samples))
    (magnitude,) = emit(Magnitude(BINS), [spectrum], [((frames, BINS), "float32")])
    bands = _matmul(magnitude, nn.Tensor.from_const(mel_filters()))
    return emit(LogMel(BANDS, FLOOR), [bands], [((frames, BANDS), "float32")])[0]
