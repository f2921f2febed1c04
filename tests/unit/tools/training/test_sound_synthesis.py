from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tools.training.tiny.media_batches import Sounds
from tools.training.tiny.sounds import RATE, Event, Sound, draw_sound

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")


def test_features_are_those_of_the_extractor() -> None:
    from transformers import Gemma4AudioFeatureExtractor

    from tools.training.tiny.sound_synthesis import features, samples_of

    rng = Random(0)
    batch = Sounds.of([draw_sound(rng, 2.5, test=False) for _ in range(6)])
    samples = samples_of(batch, 1, "cpu")
    found, mask = features(samples, torch.from_numpy(batch.samples))
    extractor = Gemma4AudioFeatureExtractor()
    for index, count in enumerate(batch.samples):
        sound = samples[index, : int(count)].numpy()
        right = extractor([sound], return_tensors="np")
        kept = right["input_features_mask"][0].astype(bool)
        assert int(mask[index].sum()) == int(kept.sum())
        np.testing.assert_allclose(
            found[index, : kept.sum()].numpy(), right["input_features"][0][kept], atol=0.02
        )
        assert not found[index, kept.sum() :].any()


def loudest_hertz(samples: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


def test_tones_have_their_pitch_at_their_time() -> None:
    from tools.training.tiny.sound_synthesis import samples_of

    events = (Event(0.5, 0.25, 1000, 1000), Event(1.0, 1.0, 400, 1200))
    made = Sound("1 high", events, 2.2, 0.5, 0.0, 0.01, 0.0)
    samples = samples_of(Sounds.of([made]), 0, "cpu")[0].numpy()
    assert np.abs(samples[: int(0.49 * RATE)]).max() == 0
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.02)
    assert loudest_hertz(samples[int(0.55 * RATE) : int(0.7 * RATE)]) == pytest.approx(1000, abs=20)
    assert loudest_hertz(samples[int(1.02 * RATE) : int(1.1 * RATE)]) == pytest.approx(448, abs=40)
    assert loudest_hertz(samples[int(1.9 * RATE) : int(1.98 * RATE)]) == pytest.approx(1152, abs=40)
