"""Rows of sounds of some lengths."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.audio.sizes import (
    MAX_SAMPLES,
    mel_frames,
    min_samples,
    sound_rows,
)
from gemma4_compile.model_spec.config.audio import AudioTokens, UnifiedAudioConfig
from tests import sounds

UNIFIED = UnifiedAudioConfig(640, 1e-6, AudioTokens(1, 2, 3))


@pytest.mark.parametrize(
    ("samples", "frames", "rows"),
    [(161, 1, 1), (320, 1, 1), (321, 2, 1), (800, 4, 1), (801, 5, 2), (MAX_SAMPLES, 2999, 750)],
)
def test_a_tower_makes_a_row_of_four_frames(samples: int, frames: int, rows: int) -> None:
    audio = sounds.config_of(sounds.TOWER).audio
    assert audio is not None
    assert (mel_frames(samples), sound_rows(audio, samples)) == (frames, rows)
    assert min_samples(audio) == 161


@pytest.mark.parametrize(("samples", "rows"), [(1, 1), (640, 1), (641, 2), (MAX_SAMPLES, 750)])
def test_a_projection_makes_a_row_of_a_frame(samples: int, rows: int) -> None:
    assert sound_rows(UNIFIED, samples) == rows
    assert min_samples(UNIFIED) == 1
