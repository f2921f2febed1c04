"""The stock client's picture: its size, and the row that makes it a container."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.media.sizes import (
    BUDGETS,
    CLIENT_BLOCKS,
    MARK_PIXELS,
    SHAPES,
    SQUARE,
    WIDE,
    client_blocks,
    client_size,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.vision.picture import ClientPicture
from gemma4_compile.operators.picture import mark_row, mark_words

PICTURES = frozenset({Modality.TEXT, Modality.IMAGE})


@pytest.mark.parametrize("size", ["E2B", "12B", "31B"])
def test_size_of_the_released_models_picture(size: str) -> None:
    config = Gemma4Config.from_preset(f"gemma-4-{size}-it", PICTURES)
    assert config.vision is not None
    client = ClientPicture(config.vision, CLIENT_BLOCKS)
    assert (client.height, client.width) == (673, 960)
    assert client.spec.shape == [1, 673, 960, 3]
    assert client.spec.dtype == "uint32"
    square = ClientPicture(config.vision, client_blocks(280, SQUARE))
    assert square.spec.shape == [1, 769, 768, 3]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_clients_picture_is_within_the_budget(budget: int, shape: str) -> None:
    across, down = client_blocks(budget, shape)
    usual = min(budget, 280)
    assert across * down <= usual
    assert (across == down) == (shape == SQUARE)
    if shape == WIDE:
        assert across * down == usual, "every row that the client is given"
    else:
        assert (across + 1) ** 2 > usual, "no larger square is"
    width, height = client_size((across, down), 48)
    assert (width, height) == (48 * across, 48 * down + 1), "with room for the mark"


def test_the_rows_bits_are_as_documented() -> None:
    words = mark_words(35, 8)
    assert words == (0x47344931, 0x00230008, 0xFFDCFFF7)
    row = mark_row(35, 8, 960)
    assert row.shape == (960, 3)
    assert set(np.unique(row)) == {0, 255}
    assert not row[MARK_PIXELS:].any()
    bits = "".join("1" if pixel[1] >= 128 else "0" for pixel in row[:MARK_PIXELS])
    assert [int(bits[i : i + 32], 2) for i in (0, 32, 64)] == list(words)
