"""What packages of the released sizes say of their media."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemma4_compile.errors import CheckpointError
from gemma4_compile.media.settings import (
    AudioSettings,
    ImageSettings,
    MediaSettings,
    media_settings,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.package.media import check_tokens, settings_of

IMAGE = ImageSettings(begin=255_999, soft=258_880, end=258_882, video=258_884, max_budget=560)
TOWER = AudioSettings(begin=256_000, soft=258_881, end=258_883, unused_samples=160)
UNIFIED = AudioSettings(begin=256_000, soft=258_881, end=258_883)


TOWER_IMAGE = replace(IMAGE, grid_size=3413)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("gemma-4-E2B-it", MediaSettings(TOWER_IMAGE, TOWER)),
        ("gemma-4-E4B-it", MediaSettings(TOWER_IMAGE, TOWER)),
        ("gemma-4-12B-it", MediaSettings(IMAGE, UNIFIED, whole_images=True)),
        ("gemma-4-26B-A4B-it", MediaSettings(TOWER_IMAGE, None, whole_images=True)),
        ("gemma-4-31B-it", MediaSettings(TOWER_IMAGE, None, whole_images=True)),
    ],
)
def test_released_sizes(preset: str, expected: MediaSettings) -> None:
    config = Gemma4Config.from_preset(preset, None)
    settings = settings_of(config, 560)
    assert settings == expected
    assert media_settings(json.loads(json.dumps({"media": settings.to_json()}))) == settings


@pytest.mark.parametrize(
    ("lacking", "named"), [(IMAGE.soft, "image"), (IMAGE.video, "image"), (TOWER.soft, "audio")]
)
def test_a_tokenizer_without_the_tokens_of_media_is_refused(lacking: int, named: str) -> None:
    settings = MediaSettings(IMAGE, TOWER)
    vocabulary = {"a": 0, "<|image|>": IMAGE.soft}
    added = [
        {"id": IMAGE.video, "content": "<|video|>"},
        {"id": TOWER.soft, "content": "<|audio|>"},
    ]
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": added}
    check_tokens(settings, tokenizer)
    rest = {
        "model": {"vocab": {text: i for text, i in vocabulary.items() if i != lacking}},
        "added_tokens": [one for one in added if one["id"] != lacking],
    }
    with pytest.raises(
        CheckpointError, match=f"has no token {lacking}, .* {named} input"
    ) as caught:
        check_tokens(settings, rest)
    assert f"leave `{named}` out" in str(caught.value.hint)
    check_tokens(MediaSettings(), rest)


def test_what_is_left_out_is_not_said() -> None:
    alone = settings_of(Gemma4Config.from_preset("gemma-4-E2B-it"), 280)
    assert alone == MediaSettings()
    heard = Gemma4Config.from_preset("gemma-4-12B-it", {Modality.TEXT, Modality.AUDIO})
    assert settings_of(heard, 280) == MediaSettings(None, UNIFIED)
