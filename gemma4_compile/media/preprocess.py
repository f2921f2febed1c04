"""Pixels and samples as towers take them, computed as transformers' processors do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import UsageError
from gemma4_compile.media.limits import INSTALL
from gemma4_compile.media.sizes import target_size

Pixels = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]


def preprocess_image(rgb: Pixels, budget: int = 280, block: int = 48) -> tuple[Blocks, Positions]:
    """Scale a picture and cut it into blocks.

    Parameters
    ----------
    rgb : (height, width, 3)
    budget : most blocks
    block : pixels of a block's side

    Returns
    -------
    pixels (n, block * block * 3), 0 to 255, each block row by row; positions (n, 2) as x, y

    Raises
    ------
    UsageError
        If Pillow is not installed.
    """
    pixels, positions = blocks(scaled(rgb, budget, block), block)
    return pixels.astype(np.float32), positions


def scaled(rgb: Pixels, budget: int, block: int) -> Pixels:
    """Scale a picture to the size that a model sees; UsageError if Pillow is not installed."""
    size = target_size(rgb.shape[1], rgb.shape[0], budget, block)
    if size == (rgb.shape[1], rgb.shape[0]):
        return rgb
    try:
        from PIL import Image

        from gemma4_compile.media.resample import resampled
    except ImportError as error:
        raise UsageError(
            "to scale pictures needs Pillow, which is not installed", hint=INSTALL
        ) from error
    return np.asarray(resampled(Image.fromarray(rgb), size))


def blocks(rgb: Pixels, block: int) -> tuple[Pixels, Positions]:
    """Cut a picture whose sides are multiples of `block` into blocks, row by row of the grid.

    Returns
    -------
    pixels (n, block * block * 3), each block row by row; positions (n, 2) as x, y
    """
    rows, columns = rgb.shape[0] // block, rgb.shape[1] // block
    grid = rgb.reshape(rows, block, columns, block, 3).transpose(0, 2, 1, 3, 4)
    y, x = np.mgrid[0:rows, 0:columns]
    positions = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.int32)
    return grid.reshape(rows * columns, block * block * 3), positions


def timestamp(seconds: float) -> str:
    """Time of a video's frame, as the text before it."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
