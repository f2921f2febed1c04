"""Size of the picture that a model sees. Imports nothing of ours, and no library."""

from __future__ import annotations

import math

BUDGETS = (70, 140, 280, 560, 1120)
"""Rows of the decoder that one picture may take."""
DEFAULT_BUDGET = 280
WIDE, SQUARE = "wide", "square"
SHAPES = (WIDE, SQUARE)
"""Shapes of the one size that the stock client hands over."""
_CLIENT_BLOCKS = {
    WIDE: {70: (10, 7), 140: (14, 10), 280: (20, 14)},
    SQUARE: {70: (8, 8), 140: (11, 11), 280: (16, 16)},
}
CLIENT_BLOCKS = _CLIENT_BLOCKS[WIDE][DEFAULT_BUDGET]
"""Blocks across and down of the client's picture, where nothing else was asked for."""
MARK_PIXELS = 96  # of the row below them that makes a picture a container: operators/picture.py


def client_blocks(budget: int, shape: str = WIDE) -> tuple[int, int]:
    """Blocks across and down of the stock client's picture.

    As many as the usual budget of tokens allows, or a smaller one; never more, which the client
    would take for every picture.
    """
    return _CLIENT_BLOCKS[shape][min(budget, DEFAULT_BUDGET)]


def client_size(blocks: tuple[int, int], block: int) -> tuple[int, int]:
    """Width and height of the stock client's picture of so many blocks across and down.

    With the row below the blocks, unless blocks of a few pixels leave no room for its mark.
    """
    across, down = blocks
    width = across * block
    return width, down * block + (width >= MARK_PIXELS)


def target_size(width: int, height: int, budget: int, block: int) -> tuple[int, int]:
    """Width and height of a picture after scaling, as transformers' `Gemma4ImageProcessor` has it.

    Both are multiples of `block`, the aspect ratio is kept as nearly as that allows, and the
    picture has at most `budget` blocks.
    """
    factor = math.sqrt(budget * block**2 / (width * height))
    columns = math.floor(factor * width / block)
    rows = math.floor(factor * height / block)
    if rows == 0:
        rows, columns = 1, min(width // height, budget)
    elif columns == 0:
        rows, columns = min(height // width, budget), 1
    return columns * block, rows * block
