"""The stock client's picture: one size, with or without the row that makes it a container.

The format: gemma4_compile/operators/picture.py.
"""

from __future__ import annotations

import numpy as np
from tvm.relax.frontend import nn

from gemma4_compile.media.sizes import client_size
from gemma4_compile.model_spec.config.vision import CHANNELS, AnyVisionConfig
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.padded_rows import PADDING
from gemma4_compile.operators.picture import (
    DTYPE,
    PictureBlocks,
    PicturePositions,
)


def with_padding(rows: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
    """The rows of a picture, those of padding marked (operators/padded_rows.py).

    Parameters
    ----------
    rows : (blocks, hidden_size of the decoder) f32
    positions : (blocks, 2) int32, negative for padding
    """
    lowest = nn.op.min(positions, axis=1, keepdims=True)
    is_padding = nn.op.less(lowest, nn.Tensor.from_scalar(0, "int32"))
    return nn.op.where(is_padding, nn.Tensor.from_scalar(PADDING, "float32"), rows)


class ClientPicture:
    """The picture that the client's adapter takes, of a model with such blocks."""

    def __init__(self, config: AnyVisionConfig, blocks: tuple[int, int]) -> None:
        """Take the model's blocks, and how many of them lie across and down."""
        self.config, self.block = config, config.block_size
        self.across, self.down = blocks
        self.width, self.height = client_size(blocks, self.block)

    @property
    def spec(self) -> nn.spec.Tensor:
        """Shape and type of the adapter's argument."""
        return nn.spec.Tensor([1, self.height, self.width, CHANNELS], DTYPE)

    def read(self, picture: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """Pixels of the blocks and their positions, as `embed_image` takes them."""
        across, down = self.across, self.down
        pixels, cells = self.block**2 * CHANNELS, across * down
        cut = PictureBlocks(across, down, self.block, self.height)
        (blocks,) = emit(cut, [picture], [((cells, pixels), "float32")])
        if self.height == self.down * self.block:  # no row for the mark of a container
            y, x = np.mgrid[: self.down, : self.across]
            stretched = np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.int32)
            return blocks, nn.Tensor.from_const(stretched)
        longest = min(self.config.grid_size, cells)
        place = PicturePositions(across, down, self.block, longest)
        (positions,) = emit(place, [picture], [((cells, 2), "int32")])
        return blocks, positions
