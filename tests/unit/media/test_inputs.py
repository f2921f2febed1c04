"""Files become what a package takes, or a reason why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import MediaError, UsageError
from gemma4_compile.media.inputs import Picture, Sound, Video, kind_of, load
from gemma4_compile.media.preprocess import preprocess_image
from gemma4_compile.media.settings import MediaSettings
from tests.media_files import SETTINGS, noise, picture_file, sound_file, tone, video_file


def test_a_picture_is_what_preprocessing_makes_of_it() -> None:
    for budget in (None, 70):
        picture = load("image", picture_file(30, 50), SETTINGS, budget=budget)
        assert isinstance(picture, Picture)
        pixels, positions = preprocess_image(noise(30, 50), budget or 280)
        assert (picture.pixels == pixels).all()
        assert (picture.positions == positions).all()
        assert picture.rows == len(pixels)


def test_equal_media_have_equal_digests() -> None:
    one, same = (load("image", picture_file(20, 20), SETTINGS) for _ in range(2))
    other = load("image", picture_file(20, 20, seed=1), SETTINGS)
    wide = load("image", picture_file(20, 30), SETTINGS)
    for picture in (one, same, other, wide):
        assert isinstance(picture, Picture)
    digests = [
        picture.digest for picture in (one, same, other, wide) if isinstance(picture, Picture)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_sounds_have_rows_and_the_shortest_ones_are_refused() -> None:
    sound = load("audio", sound_file(tone(1)), SETTINGS)
    assert isinstance(sound, Sound)
    assert sound.rows == 25
    with pytest.raises(MediaError, match=r"10\.0 ms; expected at least 10\.1 ms"):
        load("audio", sound_file(np.zeros(160, np.float32)), SETTINGS)


def test_a_video_is_frames_with_their_times(tmp_path: Path) -> None:
    video = load("video", video_file(tmp_path / "v.mp4", 64, rate=16), SETTINGS)
    assert isinstance(video, Video)
    assert [time for time, _ in video.frames][::8] == ["00:00", "00:01", "00:02", "00:03"]
    assert all(picture.rows <= 70 for _, picture in video.frames)
    assert video.rows == sum(picture.rows for _, picture in video.frames)
    assert kind_of(video) == "video"


@pytest.mark.parametrize(
    ("kind", "asked"), [("image", "image"), ("video", "image"), ("audio", "audio")]
)
def test_what_a_package_does_not_take_is_refused(kind: str, asked: str) -> None:
    with pytest.raises(UsageError, match="takes no") as caught:
        load(kind, b"", MediaSettings())
    assert f"--modalities text,{asked}" in (caught.value.hint or "")


def test_more_rows_than_the_package_has_room_for_are_refused() -> None:
    with pytest.raises(UsageError, match="up to 280 tokens; found 560") as caught:
        load("image", picture_file(), SETTINGS, budget=560)
    assert caught.value.hint == "ask for 70, 140, 280, or compile with --image-tokens 560"


def test_a_picture_beyond_the_tables_of_positions_is_refused() -> None:
    """The kernel that reads the tables does not look."""
    assert SETTINGS.image is not None
    few = MediaSettings(replace(SETTINGS.image, grid_size=40))
    assert load("image", picture_file(10, 20), few).rows <= 280
    for size in ((1, 200), (200, 1)):
        with pytest.raises(MediaError, match=r"236 blocks long, .* positions of 40"):
            load("image", picture_file(*size), few)
