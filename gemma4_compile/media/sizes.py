"""Size of the picture that a model sees. Imports nothing of ours, and no library."""

from __future__ import annotations

import math

BUDGETS = (70, 140, 280, 560, 1120)
"""Rows of the decoder that one picture may take."""


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
