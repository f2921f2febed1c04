"""What a package's metadata says of its media."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.media.settings import (
    AudioSettings,
    ImageSettings,
    MediaSettings,
    media_settings,
)
from tests.media_files import SETTINGS


def test_settings_come_back_from_json() -> None:
    for settings in (SETTINGS, MediaSettings(), MediaSettings(SETTINGS.image, whole_images=True)):
        written = json.loads(json.dumps({"media": settings.to_json()}))
        assert media_settings(written) == settings
    assert media_settings({"params": []}) == MediaSettings()


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {"video": {}},
        {"whole_images": 1},
        {"image": {"begin": 1}},
        {"image": {**(SETTINGS.to_json()["image"] or {}), "soft": -1}},  # type: ignore[dict-item]
        {"image": {**(SETTINGS.to_json()["image"] or {}), "block_size": 0}},  # type: ignore[dict-item]
        {"audio": {**(SETTINGS.to_json()["audio"] or {}), "soft": "1"}},  # type: ignore[dict-item]
        {"audio": {**(SETTINGS.to_json()["audio"] or {}), "other": 1}},  # type: ignore[dict-item]
    ],
)
def test_damaged_settings_are_refused(damaged: object) -> None:
    with pytest.raises(ArtifactError, match="metadata is damaged at `media"):
        media_settings({"media": damaged})


def test_budgets_are_those_that_the_package_has_room_for() -> None:
    def image(most: int) -> ImageSettings:
        return ImageSettings(1, 2, 3, 4, 48, most)

    assert image(280).budgets == (70, 140, 280)
    assert image(16).budgets == (16,)
    assert [image(most).budget for most in (16, 280, 1120)] == [16, 280, 280]
    assert [image(most).video_budget for most in (16, 280)] == [16, 70]


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_rows_of_a_sound_are_those_of_the_processors() -> None:
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
        Gemma4UnifiedAudioFeatureExtractor,
    )

    towers, unified = AudioSettings(1, 2, 3, 640, 160), AudioSettings(1, 2, 3)
    extract, chunk = Gemma4AudioFeatureExtractor(), Gemma4UnifiedAudioFeatureExtractor()
    for count in (1, 160, 161, 320, 640, 641, 800, 801, 1440, 12_345, 16_000, 479_999, 480_000):
        samples = np.zeros(count, np.float32)
        assert unified.rows(count) == int(chunk(samples)["input_features_mask"].sum())
        if count < 161:
            assert towers.rows(count) == 0
            continue
        mask = np.asarray(extract([samples])["input_features_mask"][0])
        for _ in range(2):  # as `replace_audio_token` does
            mask = mask[::2][: (len(mask) - 1) // 2 + 1]
        assert towers.rows(count) == int(mask.sum())
    assert towers.rows(10_000_000) == 750
