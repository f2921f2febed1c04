"""HEIC pictures: grids of tiles, turned, mirrored and cropped; damaged ones."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import MediaError
from gemma4_compile.media import heif
from gemma4_compile.media.decode import decode_image
from tests.heic_files import heic_file, hevc
from tests.media_files import smooth

RGB = smooth(150, 260)
CROP = (11, 21, 101, 51)  # left, top, width, height


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"tile": 64}, {"tile": 64, "wide": True}, {"tile": 128}, {"tile": 512}],
    ids=lambda options: repr(options),
)
def test_a_grid_is_the_picture_that_its_tiles_make(options: dict[str, Any]) -> None:
    found = decode_image(heic_file(RGB, **options))
    assert found.shape == RGB.shape
    assert np.abs(found.astype(int) - RGB).max() <= 3  # there and back through luma and chroma


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("mirror", [None, 0, 1])
@pytest.mark.parametrize("crop", [None, CROP])
def test_a_picture_is_shown_as_its_file_says(
    turns: int, mirror: int | None, crop: tuple[int, int, int, int] | None
) -> None:
    expected = RGB
    if crop is not None:
        left, top, width, height = crop
        expected = expected[top : top + height, left : left + width]
    expected = np.rot90(expected, turns)
    if mirror is not None:
        expected = expected[:, ::-1] if mirror else expected[::-1]
    content = heic_file(RGB, 160, turns=turns, mirror=mirror, crop=crop)
    found = np.asarray(heif.read(io.BytesIO(content)))
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= 3


def test_other_codecs_and_sizes_are_named() -> None:
    with pytest.raises(MediaError, match="coded as 'av01', not as HEVC") as caught:
        decode_image(heic_file(RGB, kind=b"av01"))
    assert caught.value.hint == "save it as JPEG or PNG"
    content = heic_file(RGB, 64)
    size = np.array([260, 150], ">u2").tobytes()
    for changed, words in (
        (np.array([40_000, 40_000], ">u2").tobytes(), "40000 x 40000 pixels"),
        (np.array([400, 150], ">u2").tobytes(), "do not cover"),
        (bytes(4), "0 x 0 pixels"),
    ):
        at = content.rindex(size)
        with pytest.raises(MediaError, match=words):
            decode_image(content[:at] + changed + content[at + 4 :])


@pytest.mark.slow
def test_a_damaged_picture_is_an_error_in_bounded_time() -> None:
    rng = np.random.default_rng(7)
    content = heic_file(RGB, 160)
    head = content.index(b"mdat")
    begin, refused = time.process_time(), 0
    for trial in range(300):
        changed = bytearray(content)
        if trial % 4 == 0:
            del changed[rng.integers(12, len(changed)) :]
        for _ in range(trial % 4):
            changed[rng.integers(12, head)] = rng.integers(256)
        try:
            heif.read(io.BytesIO(bytes(changed)))
        except MediaError as error:
            refused += bool(error.hint)
    assert refused > 75
    assert time.process_time() - begin < 60


def test_boxes_without_end_are_refused() -> None:
    begin = b"\0\0\0\x10ftypheic\0\0\0\0"
    for rest in (b"\0\0\0\x08free" * 200_000, b"", b"\0\0\0\x01meta" + b"\xff" * 8):
        with pytest.raises(MediaError, match="damaged"):
            heif.read(io.BytesIO(begin + rest))


def test_the_tiles_of_these_tests_are_hevc() -> None:
    configuration, frame = hevc(np.ascontiguousarray(RGB[:64, :64]))
    assert configuration[0] == 1
    assert len(frame) > 100
