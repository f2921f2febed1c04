"""The log-mel spectrum of a compiled library beside transformers' feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.audio import reference
from gemma4_compile.model_spec.audio.mel import BINS, FLOOR, log_mel, mel_filters
from gemma4_compile.passes.lowering import generate, lower
from tests import sounds, tolerances
from tests.machines import unlinked
from tests.sounds import RATE, Float32Array

pytestmark = pytest.mark.parity

LENGTHS = [161, 320, 321, 481, 1000, 1600, 4097, RATE, 3 * RATE + 33]


class Spectrum(nn.Module):
    def forward(self, samples: nn.Tensor) -> nn.Tensor:
        return log_mel(samples)


@pytest.fixture(scope="module")
def machine() -> relax.VirtualMachine:
    spec = {"samples": nn.spec.Tensor(["samples"], "float32")}
    module, _ = Spectrum().export_tvm({"forward": spec})
    return unlinked(generate(lower(module, sounds.CPU), sounds.CPU))


@pytest.fixture(scope="module")
def truth() -> sounds.Truth:
    return sounds.Truth(sounds.TOWER, sounds.random_weights(sounds.TOWER))


def compare(found: Float32Array, expected: Float32Array) -> None:
    """Hold the bands together on a linear scale: a logarithm makes errors of silence large."""
    assert found.shape == expected.shape
    bands = np.exp(expected.astype(np.float64))
    bound = tolerances.MEL_F32 * bands.max() + 1e-6 * FLOOR
    assert np.abs(np.exp(found.astype(np.float64)) - bands).max() <= bound


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("level", [1e-3, 0.3, 1.0])
def test_bands_of_all_whole_frames(
    length: int, level: float, machine: relax.VirtualMachine, truth: sounds.Truth
) -> None:
    samples = np.float32(level) * sounds.speech(length)
    features, mask = truth.features(samples)

    found = machine["forward"](tvm.runtime.tensor(samples)).numpy()

    compare(found, features[mask])
    assert not features[~mask].any()  # which stands for the silence of a padded convolution


def test_a_tone_is_in_its_band(machine: relax.VirtualMachine, truth: sounds.Truth) -> None:
    samples = np.sin(2 * np.pi * 440.0 / RATE * np.arange(RATE)).astype(np.float32)
    found = machine["forward"](tvm.runtime.tensor(samples)).numpy()
    features, mask = truth.features(samples)
    compare(found, features[mask])
    assert (found.argmax(axis=1)[2:] == features[mask].argmax(axis=1)[2:]).all()


def test_the_filters_are_transformers(truth: sounds.Truth) -> None:
    theirs = truth.extractor.mel_filters
    np.testing.assert_allclose(mel_filters(), theirs[:BINS].T, rtol=0, atol=1e-6)
    np.testing.assert_allclose(reference.mel_filters(), theirs, rtol=0, atol=1e-12)
    assert theirs[BINS].max() < 1e-9  # the one bin that is left out


@pytest.mark.parametrize("length", LENGTHS)
def test_the_reference_is_transformers(length: int, truth: sounds.Truth) -> None:
    samples = sounds.speech(length)
    features, mask = truth.features(samples)
    found, seen = reference.log_mel(samples)
    np.testing.assert_array_equal(seen, mask)
    compare(found, features)
