"""The product of a tile of x with a tile of W by Metal 4's tensor operations, `matmul2d`.

All simdgroups of a threadgroup multiply two tiles of its memory together, W's of float16 and x's
of its own type, and keep float32 sums among them in a way that is Apple's (a cooperative tensor).
Rows lie one after the other, channel by channel, as x is read without a transposition: the loaders
are those of the other tiles, whose blocks are turned as they are written. At the end the sums go
through the same memory, for an epilogue wants them by place.

The calls here are written out in Metal's language by targets/metal_tensors.py, each a line of its
own: C++ deduces the tensors' types, which TVM has no names for.

References
----------
Metal Shading Language Specification 4, "Tensors", "Tensor Operations (TensorOps)"; the comments of
MPPTensorOpsMatMul2d.h in MetalPerformancePrimitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.tir import bind, store
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.targets.kernels.common.blocks import barrier, shared
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import (
    QUAD,
    VECTOR,
    Change,
    DenseLoader,
    Move,
    RowOf,
    Tile,
    WeightLoader,
    lane_of,
    transposed,
)
from gemma4_compile.targets.kernels.tiles.products import ITEM_BYTES, Finish, PipelinedProduct
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import SIMDGROUP, SimdgroupShape
from gemma4_compile.targets.simdgroup_tuning import SimdgroupTuning

BEGIN, PUT_HALVES, RUN, STORE = (
    f"gemma4_tensor_{name}" for name in ("begin", "put_halves", "run", "store")
)
HALF_BYTES = 2


@dataclass(frozen=True)
class TensorShape(SimdgroupShape):
    """Division of a threadgroup's work, whose simdgroups are as many as those of the other product.

    Attributes
    ----------
    left_bytes : of a channel of x in memory: 2 or 4
    """

    left_bytes: int = ITEM_BYTES

    @classmethod
    def for_rows(cls, size: SimdgroupTuning, dtype: str) -> TensorShape:
        """The division by some sizes, of x of some type."""
        parts = size.part_rows, size.part_columns
        return cls(size.rows, size.columns, size.depth, *parts, left_bytes(dtype))

    @property
    def simdgroups(self) -> int:
        """Simdgroups that multiply together."""
        return self.threads // SIMDGROUP

    @property
    def vectors(self) -> int:
        """Memory of both tiles, or of all sums, in float32 vectors."""
        row_bytes = self.rows * self.left_bytes + self.columns * HALF_BYTES
        tiles = self.depth * row_bytes // (VECTOR * ITEM_BYTES)
        return max(tiles, self.rows * self.columns // VECTOR)


def takes_layout(layout: WeightLayout) -> bool:
    """Return whether there is no harm in a matrix as float16: it is stored in that, or in less."""
    return layout.dtype == "float16" or isinstance(layout, MinimaLayout)


def left_bytes(dtype: str) -> int:
    """Bytes of a channel of x in memory, by its type in the tensor: it is not rounded there."""
    return HALF_BYTES if dtype == "float16" else ITEM_BYTES


@dataclass(frozen=True)
class _OperandTile(Tile):
    """A tile whose rows lie one after the other; places count four channels.

    Attributes
    ----------
    item_bytes : of a channel
    """

    item_bytes: int

    def twisted(self, row_vector: Expr, twist: Expr) -> Expr:
        """See `Tile`; nothing is twisted."""
        return row_vector

    def put(self, memory: Buffer, vec4: Expr, row_vector: Expr, values: Sequence[Expr]) -> None:
        """See `Tile`."""
        for i, channels in enumerate(transposed(values)):
            place = self.first + (row_vector * VECTOR + i) * self.vec4s + vec4
            if self.item_bytes == HALF_BYTES:
                _call(PUT_HALVES, memory, place, bind(channels))
            else:
                store(memory, channels, place)


class TensorTileProduct(PipelinedProduct):
    """The sums of one tile of ``x W^T``; `TileProduct` by tensor operations.

    Parameters
    ----------
    x : one tensor (any, cols), the left matrix
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    change : of x, four channels at a time, or None
    """

    def __init__(
        self,
        shape: TensorShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
        change: Change | None = None,
    ) -> None:
        assert shape.left_bytes == left_bytes(str(x[0].dtype)), "shaped for this x"
        self._shape, self._thread = shape, thread
        left = _OperandTile(0, shape.rows, shape.depth, shape.left_bytes)
        first = shape.rows * shape.depth * shape.left_bytes // (VECTOR * HALF_BYTES)
        right = _OperandTile(first, shape.columns, shape.depth, HALF_BYTES)
        self._memory = shared((shape.vectors,), QUAD)
        move_x = Move(left, thread, shape.threads, 0, row_of_x)
        move_w = Move(right, thread, shape.threads, left.blocks, row_of_w)
        self._loaders = DenseLoader(move_x, x[0], change), WeightLoader(move_w, weights)
        sizes = (shape.rows, shape.columns, shape.depth, shape.simdgroups, shape.left_bytes)
        _call(BEGIN, self._memory, *sizes)

    def _multiply(self) -> None:
        """See `PipelinedProduct`; it is the whole threadgroup's."""
        _call(RUN, self._memory)

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 4 sums)`` all over the tile; places are within it."""
        shape = self._shape
        across = shape.columns // VECTOR
        barrier()  # the memory may still be being read
        _call(STORE, self._memory, shape.rows, shape.columns)
        barrier()
        with T.serial(0, shape.rows * across // shape.threads) as iteration:
            item = bind(iteration * shape.threads + self._thread)
            row, four = bind(tirx.floordiv(item, across)), bind(tirx.floormod(item, across))
            sums = bind(self._memory[item])
            body(row, bind(four * VECTOR), [bind(lane_of(sums, lane)) for lane in range(VECTOR)])


def _call(name: str, memory: Buffer, *arguments: Index) -> None:
    """A line for targets/metal_tensors.py; the address shows TVM that the memory is used."""
    T.evaluate(tirx.call_extern("void", name, T.address_of(memory[0]), *arguments))
