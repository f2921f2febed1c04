"""The stock client's picture: its size, and the row that makes it a container."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.media.sizes import MARK_PIXELS
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.model_spec.vision.picture import ACROSS, DOWN, ClientPicture
from gemma4_compile.operators.picture import mark_row, mark_words

PICTURES = frozenset({Modality.TEXT, Modality.IMAGE})


@pytest.mark.parametrize("size", ["E2B", "12B", "31B"])
def test_size_of_the_released_models_picture(size: str) -> None:
    config = Gemma4Config.from_preset(f"gemma-4-{size}-it", PICTURES)
    assert config.vision is not None
    client = ClientPicture(config.vision)
    assert (client.height, client.width) == (673, 960)
    assert ACROSS * DOWN == 280
    assert client.spec.shape == [1, 673, 960, 3]
    assert client.spec.dtype == "uint32"


def test_the_rows_bits_are_as_documented() -> None:
    words = mark_words(35, 8)
    assert words == (0x47344931, 0x00230008, 0xFFDCFFF7)
    row = mark_row(35, 8, 960)
    assert row.shape == (960, 3)
    assert set(np.unique(row)) == {0, 255}
    assert not row[MARK_PIXELS:].any()
    bits = "".join("1" if pixel[1] >= 128 else "0" for pixel in row[:MARK_PIXELS])
    assert [int(bits[i : i + 32], 2) for i in (0, 32, 64)] == list(words)
