"""A warp that multiplies bytes on tensor cores: its lanes, its share of channels, its integers."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.tir import bind, i32, store
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    ROW_LANES,
    TensorCoreShape,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_SUMS, WARP

MAGIC = 0x4B400000
"""As a float32 3 * 2**22, whose last bits count ones: integers are summed onto it as integers, and
the difference to it is the sum as a float32."""


class Warp:
    """One warp's lanes, each with its place in a product.

    Attributes
    ----------
    lane : of the warp
    row, quarter : of a product the lane's row of either side, and its quarter of the channels
    number : of the warp in its block
    band, part : which rows of the block are the warp's, and which of their channels
    magic : MAGIC, for each of a lane's sums
    none : the same as a float32; Metal's text of such a number would not have all of its digits
    """

    def __init__(self, shape: TensorCoreShape, thread: Expr) -> None:
        self.shape = shape
        self.lane = bind(tirx.floormod(thread, WARP))
        self.number = bind(tirx.floordiv(thread, WARP))
        self.band = bind(tirx.floordiv(self.number, shape.warps))
        self.part = bind(tirx.floormod(self.number, shape.warps))
        self.row = bind(tirx.floordiv(self.lane, ROW_LANES))
        self.quarter = bind(tirx.floormod(self.lane, ROW_LANES))
        self.magic = local((BYTE_SUMS,), "int32")
        for k in range(BYTE_SUMS):
            store(self.magic, i32(MAGIC), k)
        self.none = bind(tirx.reinterpret("float32", self.magic[0]))


def bits(value: int) -> Expr:
    """A word."""
    return tirx.const(value, "uint32")
