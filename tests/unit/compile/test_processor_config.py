"""What a checkpoint's processor does otherwise with media is named, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from gemma4_compile.compile.processor_config import warn_of_processor
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings

IMAGE = ImageSettings(1, 2, 3, 4)
BOTH = MediaSettings(IMAGE, AudioSettings(5, 6, 7))


def said(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    settings: MediaSettings = BOTH,
) -> str:
    (path / "processor_config.json").write_text(json.dumps(config))
    warn_of_processor(path, settings)
    return capsys.readouterr().err


def test_what_transformers_itself_writes_is_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_processor(tmp_path, BOTH)
    assert capsys.readouterr().err == ""
    processor: Any = Gemma4ImageProcessorPil
    written = json.loads(processor().to_json_string())
    assert written["max_soft_tokens"] == IMAGE.budget
    video = {**written, "max_soft_tokens": 70, "num_frames": 32, "do_normalize": True}
    config = {"image_processor": written, "video_processor": video, "audio_ms_per_token": 40}
    assert said(tmp_path, capsys, config) == ""
    assert said(tmp_path, capsys, {"image_processor": None, "chat_template": "x"}) == ""


@pytest.mark.parametrize(
    ("budget", "made_for", "hint"),
    [
        (140, 280, "hint: compile with --image-tokens 140\n"),
        (140.0, 280, "hint: compile with --image-tokens 140\n"),
        (560, 280, "hint: compile with --image-tokens 560, and ask for it with --image-tokens 560"),
        (560, 560, "hint: ask for it with --image-tokens 560, or `detail: high` in a request\n"),
        (560, 1120, "hint: ask for it with --image-tokens 560\n"),
        (100, 280, "hint: replies about them may be others"),
    ],
)
def test_another_budget_of_pictures_is_named_with_what_to_do(
    budget: float,
    made_for: int,
    hint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = ImageSettings(1, 2, 3, 4, max_budget=made_for)
    found = said(
        tmp_path, capsys, {"image_processor": {"max_soft_tokens": budget}}, MediaSettings(image)
    )
    own = f"the package's {image.budget}"
    assert f"`image_processor.max_soft_tokens` is {budget}, {own}" in found
    assert hint in found


def test_fewer_rows_of_pictures_that_were_asked_for_are_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = MediaSettings(ImageSettings(1, 2, 3, 4, max_budget=140))
    for said_by_file in (280, 560, 70):
        config = {"image_processor": {"max_soft_tokens": said_by_file}}
        assert said(tmp_path, capsys, config, settings) == ""
    config["image_processor"]["do_resize"] = False
    found = said(tmp_path, capsys, config, settings)
    assert "do_resize" in found
    assert "max_soft_tokens" not in found


def test_sizes_and_steps_that_are_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"patch_size": 14, "pooling_kernel_size": 3, "do_resize": False, "resample": 2}
    scaled = {"do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "rescale_factor": 1 / 127.5}
    config = {
        "image_processor": image,
        "video_processor": {**scaled, "num_frames": 8},
        "feature_extractor": {"sampling_rate": 24_000},
    }
    found = said(tmp_path, capsys, config)
    for words in (
        "`image_processor.patch_size * pooling_kernel_size` is 42, the package's 48",
        "`image_processor.do_resize` is False",
        "`image_processor.resample` is 2",
        "`video_processor.num_frames` is 8, the package's 32",
        "`video_processor.image_mean` is [0.5, 0.5, 0.5]",
        "`video_processor.rescale_factor`",
        "`feature_extractor.sampling_rate` is 24000, the package's 16000",
    ):
        assert words in found
    assert said(tmp_path, capsys, config, MediaSettings()) == ""
