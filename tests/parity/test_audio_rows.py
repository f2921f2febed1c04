"""Rows of a sound from a compiled library, beside transformers with its own feature extractor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.model_spec.audio import reference
from gemma4_compile.model_spec.audio.sizes import MAX_SAMPLES, min_samples, sound_rows
from gemma4_compile.targets.spec import INT8
from tests import sounds, tolerances
from tests.marks import slow_unless
from tests.packages import unoptimised
from tests.sounds import RATE, Float32Array, Sound

pytestmark = pytest.mark.parity

WIDE = {**sounds.TOWER, "hidden_size": 256, "output_proj_dims": 256, "num_hidden_layers": 1}
AUDIOS: Mapping[str, Mapping[str, Any]] = {
    "tower": sounds.TOWER,
    "unclipped": {**sounds.TOWER, "use_clipped_linears": False},
    "other sizes": {
        **sounds.TOWER,
        **{"attention_logit_cap": 2.0, "conv_kernel_size": 3, "residual_weight": 1.25},
        **{"num_attention_heads": 2, "hidden_size": 44, "output_proj_dims": 36},
        **{"subsampling_conv_channels": [128, 5], "rms_norm_eps": 1e-3},
    },
    # Clamps that no released model reaches, and chunks that move the relative positions.
    "clamped": {**sounds.TOWER, "gradient_clipping": 1.5},
    "short chunks": {**sounds.TOWER, "attention_chunk_size": 3, "attention_context_left": 9},
    "long chunks": {**sounds.TOWER, "attention_chunk_size": 6, "attention_context_left": 5},
    "wide": WIDE,
    "unified": sounds.UNIFIED,
}
QUICK_REFERENCES = ("tower", "unified")
# Whether the last frame of the spectrum is masked, and how many rows it would make, changes with
# the length: every remainder of frames by rows, around the padding to 128 samples.
EDGES = [161, 320, 321, 480, 481, 640, 641, 768, 769, 1280, 1281, 1409, 1537, 16_000, 16_001]
LENGTHS = [*EDGES, RATE // 10, RATE * 7 // 10 + 1, 3 * RATE - 77]
QUICK_LENGTHS = (161, 641, 1281, 16_001)


@cache
def compiled(name: str, recipe: str = "f32") -> Sound:
    """As users get it for the kinds of released models in f32; see `unoptimised`."""
    with nullcontext() if recipe == "f32" and name in QUICK_REFERENCES else unoptimised():
        return sounds.build(AUDIOS[name], recipe)


def compare(sound: Sound, samples: Float32Array, recipe: str = "f32") -> None:
    expected = sound.truth.rows(samples)
    found = sound.rows(samples)
    assert found.shape == expected.shape, f"rows of {len(samples)} samples"
    bound = tolerances.SOUND_ROWS[recipe]
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


# Which frames make a row is the same for all sizes of a tower.
BY_LENGTH = [
    (name, length)
    for name in AUDIOS
    for length in (LENGTHS if name in ("tower", "unified") else (*QUICK_LENGTHS, LENGTHS[-1]))
]


@pytest.mark.parametrize(
    ("name", "length"),
    slow_unless(lambda name, n: name in ("tower", "unified") and n in QUICK_LENGTHS, BY_LENGTH),
)
def test_rows_equal_transformers_at_every_length(name: str, length: int) -> None:
    compare(compiled(name), sounds.speech(length))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *(("wide", "q4f16"), ("wide", "q8f16"), ("tower", "f16"), ("tower", "q4f32")),
        *(("unified", recipe) for recipe in ("q4f16", "q8f16", "f16", "q4f32")),
    ],
)
def test_rows_of_every_recipe(name: str, recipe: str) -> None:
    for length in (161, RATE + 5, 2 * RATE):
        compare(compiled(name, recipe), sounds.speech(length), recipe)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide", "unified"])
def test_rows_with_int8_activations(name: str) -> None:
    with unoptimised():
        sound = sounds.build(AUDIOS[name], "q8f16", replace(sounds.CPU, activations=INT8))
    samples = sounds.speech(RATE)
    error = np.abs(sound.rows(samples) - sound.truth.rows(samples)).max()
    assert tolerances.SOUND_ROWS_F16 / 4 < error < tolerances.SOUND_ROWS_INT8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tower", "unified"])
def test_the_longest_sound(name: str) -> None:
    samples = sounds.speech(MAX_SAMPLES)
    compare(compiled(name), samples)
    assert compiled(name).rows(samples).shape[0] == 750


@pytest.mark.parametrize("name", ["tower", "unified"])
def test_silence_and_full_scale(name: str) -> None:
    compare(compiled(name), np.zeros(5000, np.float32))
    square = np.sign(np.sin(np.arange(9000) * 0.05)).astype(np.float32)
    compare(compiled(name), square)


@pytest.mark.parametrize("name", ["tower", "unified"])
def test_the_clients_adapter_is_the_same_function(name: str) -> None:
    samples = sounds.speech(4321)
    sound = compiled(name)
    np.testing.assert_array_equal(sound.rows(samples, abi.AUDIO_ADAPTER), sound.rows(samples))


@pytest.mark.parametrize("name", ["tower", "unified"])
def test_row_counts_are_those_of_transformers_mask(name: str) -> None:
    sound = compiled(name)
    audio = sound.config.audio
    assert audio is not None
    step = 97  # prime to every size, so that all remainders come by
    for length in [*range(min_samples(audio), 16_000, step), *EDGES, MAX_SAMPLES - 1, MAX_SAMPLES]:
        _, mask = sound.truth.features(np.zeros(length, np.float32))
        kept = mask if name == "unified" else mask[::2][::2]
        assert sound_rows(audio, length) == kept.sum(), length


@pytest.mark.parametrize("name", slow_unless(lambda n: n in QUICK_REFERENCES, AUDIOS))
def test_the_reference_equals_transformers(name: str) -> None:
    sound = compiled(name)
    for length in (161, 1281, RATE + 1):
        samples = sounds.speech(length)
        found = reference.embed_audio(sound.config, sound.weights, samples)
        expected = sound.truth.rows(samples)
        bound = tolerances.SOUND_ROWS_F32
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.slow
def test_every_kind_of_bound_clips() -> None:
    sound = compiled("tower")
    samples = sounds.speech(RATE)
    right = reference.embed_audio(sound.config, sound.weights, samples)
    changes: dict[str, float] = {}
    for name in (name for name, value in sound.weights.items() if not value.shape):
        without = np.asarray(np.inf if name.endswith("max") else -np.inf, np.float32)
        rows = reference.embed_audio(sound.config, {**sound.weights, name: without}, samples)
        kind = ".".join(name.split(".")[-2:])
        changes[kind] = max(changes.get(kind, 0.0), float(np.abs(rows - right).max()))
    assert len(changes) == 8 * 4  # the feed-forward blocks' matmuls have the same names
    assert min(changes.values()) > 10 * tolerances.SOUND_ROWS_F32, changes


MISTAKES: Mapping[str, Mapping[str, Any]] = {
    "clamps within the values": {"gradient_clipping": 1.5},
    "context of one more": {"attention_context_left": 14, "attention_chunk_size": 11},
    "no cap": {"attention_logit_cap": 1e6},
    "whole feed-forward": {"residual_weight": 1.0},
    "no bounds": {"use_clipped_linears": False},
    "another position of distance 0": {"attention_chunk_size": 14},
}


@pytest.mark.parametrize("mistake", slow_unless(lambda name: name == "no bounds", MISTAKES))
def test_a_mistake_is_seen(mistake: str) -> None:
    right = compiled("tower")
    audio = {**sounds.TOWER, **MISTAKES[mistake]}
    config, weights = sounds.config_of(audio), dict(right.weights)
    if not audio.get("use_clipped_linears", True):
        weights = {name: value for name, value in weights.items() if value.shape}
    samples = sounds.speech(RATE)

    wrong = reference.embed_audio(config, weights, samples)

    assert np.abs(wrong - right.truth.rows(samples)).max() > 3 * tolerances.SOUND_ROWS_F32
