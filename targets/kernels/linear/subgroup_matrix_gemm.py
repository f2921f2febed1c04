"""Matrix times many rows in subgroup matrices: float16 operands, float32 sums.

Definition: `BoundedLinear` in operators/bounded_linear.py. As in tensor_core_gemm.py both tiles lie
in shared memory row by row as halves, weights are decoded on their way there, and what the next
step needs is read before a step's products. Tiles and sums: tiles/subgroup_products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import DENSE, INTEGERS, WeightLayout
from gemma4_compile.operators.packings import BYTES
from gemma4_compile.operators.tir import bind, function, i32, materialize, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, launch, local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.bounded_operands import BoundedOperands
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    RowOf,
    joined,
    lane_of,
    put,
    splat,
    vector,
)
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import (
    halves_of,
    has_subgroup_matrices,
    piece_of,
    read_piece,
)
from gemma4_compile.targets.kernels.tiles.subgroup_products import (
    COUNTED,
    COUNTING,
    FLOATS,
    WEIGHTS,
    HalvesLoader,
    PieceLoader,
    SubgroupSums,
    tile_pieces,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, shared_pieces
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import TensorCoreTuning

HALF = "float16"


def fits_subgroup_matrices(operator: BoundedLinear, spec: TargetSpec) -> bool:
    """Return whether the target has them and the operands are halves that move in pieces."""
    layout = operator.layout
    halves = operator.in_dtype == layout.dtype == HALF
    is_bytes = layout.form == INTEGERS and layout.packing == BYTES
    is_bytes = is_bytes and layout.group_size % WEIGHTS == 0
    forms = layout.form == DENSE or is_bytes
    return has_subgroup_matrices(spec) and halves and forms and operator.cols % WEIGHTS == 0


class _RowsLoader(HalvesLoader):
    """Rows of x within bounds."""

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Buffer,
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
        bounds: Sequence[Expr],
    ) -> None:
        super().__init__(size, x, memory, thread, row_of)
        self._bounds = bounds[:2]

    def meant(self, piece: Expr) -> Expr:
        """Its halves within the bounds, where there are some."""
        if not self._bounds:
            return piece
        return piece_of([self._bounded(four) for four in halves_of(piece)])

    def _bounded(self, four: Expr) -> Expr:
        low, high = (splat(bound) for bound in self._bounds)
        wide = tirx.max(tirx.min(four.astype(FLOATS), high), low)
        return materialize(wide.astype(f"{HALF}x{VECTOR}"), f"{HALF}x{VECTOR}")


class _WeightsLoader(PieceLoader):
    """Rows of a stored matrix; beyond the last channel some of its values."""

    def __init__(
        self,
        size: TensorCoreTuning,
        weights: WeightReader,
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        first = size.rows * size.row_pieces
        super().__init__(
            size, WEIGHTS, weights.layout.cols, memory, first, size.columns, thread, row_of
        )
        self._weights = weights
        self._is_integers = weights.layout.form == INTEGERS
        if self._is_integers:
            self._words = local((self.count * VECTOR,), "uint32")
            self._scales = local((self.count,), HALF)
        else:
            self._raw = local((self.count * WEIGHTS // 2,), "uint32")

    def read(self, step: Expr) -> None:
        """Read a step's units, and their scales."""
        layout, at = self._weights.layout, self.at(step)
        for index, row in enumerate(self.rows):

            def read(
                split: Sequence[Buffer], begin: int, index: int = index, row: Expr = row
            ) -> None:
                if not self._is_integers:
                    for piece in range(WEIGHTS // PIECE):
                        first = at * WEIGHTS + piece * PIECE
                        value = read_piece(split[0], row - begin, first)
                        put(self._raw, index * 2 + piece, value)
                    return
                words = split[0][row - begin, T.ramp(at * VECTOR, 1, VECTOR)]
                put(self._words, index, words)
                group = tirx.floordiv(at, layout.group_size // WEIGHTS)
                store(self._scales, split[1][row - begin, group], index)

            self._weights.in_split(row, read)

    def write(self) -> None:
        """Write the units that were read for a step."""
        for index in range(self.count):
            for piece in range(WEIGHTS // PIECE):
                if self._is_integers:
                    value = self._decoded(index, piece)
                else:
                    value = vector(self._raw, index * 2 + piece)
                self.put(index, piece, value)

    def _decoded(self, index: int, piece: int) -> Expr:
        """Eight scaled bytes of two words as the halves of a piece."""
        layout: WeightLayout = self._weights.layout
        zero = T.Broadcast(tirx.const(COUNTED + layout.packing.zero_point, HALF), 2)
        scale = T.Broadcast(self._scales[index], 2)
        found = []
        for half in range(2):
            word = bind(lane_of(vector(self._words, index), piece * 2 + half))
            for low in (0, 16):
                two = tirx.shift_right(word, _bits(low)) if low else word
                two = bind(two)
                spread = tirx.bitwise_or(
                    tirx.bitwise_and(two, _bits(0xFF)),
                    tirx.bitwise_and(tirx.shift_left(two, _bits(8)), _bits(0xFF0000)),
                )
                counting = tirx.reinterpret("float16x2", tirx.bitwise_or(spread, _bits(COUNTING)))
                found.append(tirx.reinterpret("uint32", (counting - zero) * scale))
        return joined(found)


def _bits(value: int) -> Expr:
    return tirx.const(value, "uint32")


def make_subgroup_matrix_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    rows, cols = operator.layout.rows, operator.cols
    size = spec.tuning.subgroup_matrices.tile(rows)
    with function(scheduled=True) as build:
        args = BoundedOperands.declare(build, operator)
        n, x, weights = args.rows, args.x, args.weights
        grid = -(-rows // size.columns), tirx.floordiv(n + (size.rows - 1), size.rows)
        with launch(size.threads, *grid) as (block_n, tile, thread):
            block_m = bind(i32(tile))
            limits, last = args.limits(), bind(i32(n) - 1)
            first_m, first_n = bind(block_m * size.rows), bind(block_n * size.columns)
            memory = shared_pieces(tile_pieces(size))
            left = _RowsLoader(
                size, x, memory, thread, lambda i: tirx.min(first_m + i, last), limits
            )
            right = _WeightsLoader(
                size, weights, memory, thread, lambda i: tirx.min(first_n + i, rows - 1)
            )
            sums, steps = SubgroupSums(size, thread), -(-cols // size.depth)
            left.read(i32(0))
            right.read(i32(0))
            with T.serial(0, steps) as step:
                barrier()  # the tiles of the step before may still be being read
                left.write(step)
                right.write()
                barrier()
                following = bind(tirx.min(step + 1, steps - 1))
                left.read(following)
                right.read(following)
                sums.multiply(memory)

            def finish(row: Expr, column: Expr, vectors: Sequence[Expr]) -> None:
                if args.stores_vectors:
                    args.store_vectors(row, column, vectors, limits, last)
                else:
                    values = [bind(lane_of(four, i)) for four in vectors for i in range(VECTOR)]
                    args.store_sums(row, column, values, limits, last)

            sums.finish(memory, (first_m, first_n), args.vectors_at_once, finish)
    return build.result
