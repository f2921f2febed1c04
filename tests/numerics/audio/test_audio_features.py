"""Frames, spectrum and subsampling against NumPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gemma4_compile.operators.audio_features import (
    LogMel,
    Magnitude,
    SoundFrames,
    SubsampleConv,
    WindowedTransform,
)
from tests.numerics.definitions import F32_ABSOLUTE, F32_RELATIVE, ROUNDED, run, values

EPS = 1e-6


@pytest.mark.parametrize("count", [161, 320, 321, 1000])
def test_frames_overlap_and_begin_in_silence(count: int) -> None:
    samples, rows = values(1, count), (count - 1) // 160
    y = np.full((rows, 320), np.nan, np.float32)

    run(SoundFrames(320, 160, 160, "float32"), samples, y)

    padded = np.concatenate([np.zeros(160, np.float32), samples])
    expected = np.stack([padded[160 * i : 160 * i + 320] for i in range(rows)])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("count", [1, 639, 640, 641])
def test_the_last_frame_ends_in_silence(count: int) -> None:
    samples, rows = values(1, count), -(-count // 640)
    y = np.full((rows, 640), np.nan, np.float32)

    run(SoundFrames(640, 640, 0, "float32"), samples, y)

    expected = np.zeros(rows * 640, np.float32)
    expected[:count] = samples
    np.testing.assert_array_equal(y, expected.reshape(rows, 640))


def test_magnitude_and_logarithm() -> None:
    x, mel = values(1, 5, 18), np.abs(values(2, 5, 7))
    mel[0] = 0.0
    y, z = np.zeros((5, 9), np.float32), np.zeros((5, 7), np.float32)

    run(Magnitude(9), x, y)
    run(LogMel(7, 1e-3), mel, z)

    np.testing.assert_allclose(y, np.hypot(x[:, :9], x[:, 9:]), rtol=F32_RELATIVE)
    expected = np.log(mel.astype(np.float64) + 1e-3)
    np.testing.assert_allclose(z, expected, rtol=F32_RELATIVE, atol=F32_ABSOLUTE)


def test_the_transform_of_windowed_frames_is_fouriers() -> None:
    window, x = values(1, 33), values(2, 5, 33)
    cosines = np.cos(2 * np.pi * np.arange(64) / 64).astype(np.float32)
    matrix = np.full((20, 33), np.nan, np.float32)

    run(WindowedTransform(10, 33, 64), values(3, 7), cosines, window, matrix)

    spectrum = np.fft.fft(x * window, 64)[:, :10]
    parts = np.concatenate([spectrum.real, spectrum.imag], axis=1)
    np.testing.assert_allclose(x @ matrix.T, parts, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(
    ("frequencies", "channels", "dtype"),
    [(12, (1, 16), "float32"), (7, (5, 24), "float16"), (8, (3, 1), "float32")],
)
def test_subsampling_is_convolution_norm_and_relu(
    rows: int, frequencies: int, channels: tuple[int, int], dtype: str
) -> None:
    inputs, outputs = channels
    x, norm = values(1, rows, frequencies * inputs), values(2, outputs)
    weight = values(3, outputs, inputs, 3, 3)
    operator = SubsampleConv(frequencies, inputs, outputs, EPS, "float32", dtype)
    y = np.full(((rows + 1) // 2, operator.outputs), np.nan, dtype)

    run(operator, x, weight.reshape(-1, 3), norm, y)

    image = torch.from_numpy(x).double().reshape(1, rows, frequencies, inputs).permute(0, 3, 1, 2)
    kernel = torch.from_numpy(weight).double()
    wide = torch.nn.functional.conv2d(image, kernel, stride=2, padding=1).permute(0, 2, 3, 1)
    scale = torch.from_numpy(norm).double()
    normed = torch.nn.functional.layer_norm(wide, (outputs,), scale, eps=EPS).relu()
    np.testing.assert_allclose(y, normed[0].flatten(1).numpy(), **ROUNDED[dtype])
