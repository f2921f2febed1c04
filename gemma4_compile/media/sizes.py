"""Size of the picture that a model sees. Imports nothing of ours, and no library."""

from __future__ import annotations

import math

BUDGETS = (70, 140, 280, 560, 1120)
"""Rows of the decoder that one picture may take."""
CLIENT_BLOCKS = (20, 14)
"""Blocks across and down of the one size that the stock client hands over."""
CLIENT_ROWS = CLIENT_BLOCKS[0] * CLIENT_BLOCKS[1]
MARK_PIXELS = 96  # of the row below them that makes a picture a container: operators/picture.py


def client_size(block: int) -> tuple[int, int]:
    """Width and height of the stock client's picture.

    With the row below the blocks, unless blocks of a few pixels leave no room for its mark.
    """
    across, down = CLIENT_BLOCKS
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
