"""Subgroup matrices: 16 x 16 float16 operands and float32 sums that a whole subgroup holds.

WebGPU has them as an experiment. A subgroup is 32 neighbouring threads here, and every one of them
makes the calls. A matrix has no address: calls name it by its kind and a number that is known when
the kernel is written. They are opaque to TVM; their WGSL is written in targets/wgsl_matrices.py.
Tiles in shared memory lie row by row in pieces of 16 bytes, as in tensor_cores.py: operands as 8
halves, sums as 4 float32.

References
----------
Dawn, docs/dawn/features/subgroup_matrix.md; offsets and pitches count elements of the array.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import barrier
from gemma4_compile.targets.kernels.tiles.loaders import (
    joined,
    lane_of,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE
from gemma4_compile.targets.spec import TargetSpec

FEATURE = "chromium-experimental-subgroup-matrix"
SUBGROUP = 32
SIDE = 16  # rows, columns and channels of a matrix
SUM_PIECE = 4  # float32 of 16 bytes
PIECE_BYTES = 16
SIDE_PIECES, SIDE_SUM_PIECES = SIDE // PIECE, SIDE // SUM_PIECE

CLEAR = "gemma4_matrix_clear"
LEFT = "gemma4_matrix_left"
RIGHT = "gemma4_matrix_right"
RIGHT_TRANSPOSED = "gemma4_matrix_right_transposed"
MULTIPLY_ADD = "gemma4_matrix_multiply_add"
STORE = "gemma4_matrix_store"
LOAD = "gemma4_matrix_load"
UNIFORM_LOAD = "workgroupUniformLoad"
READ_PIECE = "gemma4_read_piece"


def has_subgroup_matrices(spec: TargetSpec) -> bool:
    """Return whether the target's limits ask for them."""
    return FEATURE in spec.features


def _call(name: str, *args: Expr | int) -> None:
    T.evaluate(tirx.call_extern("void", name, *args))


def clear(total: int) -> None:
    """Set a matrix of sums to 0."""
    _call(CLEAR, total)


def load_left(left: int, memory: Buffer, first: Index, pitch: int) -> None:
    """Load 16 rows of A, 16 channels of each, from piece `first` on."""
    _call(LEFT, left, T.address_of(memory[first]), pitch)


def load_right(right: int, memory: Buffer, first: Index, pitch: int) -> None:
    """Load 16 rows of B, 16 channels of each: of ``A B^T``."""
    _call(RIGHT, right, T.address_of(memory[first]), pitch)


def load_right_transposed(right: int, memory: Buffer, first: Index, pitch: int) -> None:
    """Load 16 channels of B, 16 columns of each: of ``A B``."""
    _call(RIGHT_TRANSPOSED, right, T.address_of(memory[first]), pitch)


def multiply_add(total: int, left: int, right: int) -> None:
    """Add the product of two operands to a matrix of sums."""
    _call(MULTIPLY_ADD, total, left, right)


def store_sums(total: int, memory: Buffer, first: Index, pitch: int) -> None:
    """Store 16 rows of 16 sums; other threads see them after a barrier."""
    _call(STORE, total, T.address_of(memory[first]), pitch)


def load_sums(total: int, memory: Buffer, first: Index, pitch: int) -> None:
    """Load 16 rows of 16 sums."""
    _call(LOAD, total, T.address_of(memory[first]), pitch)


def after_barrier(memory: Buffer, index: int = 0) -> Expr:
    """An int32 of shared memory after a barrier, as a value that the whole block branches on."""
    barrier()  # TVM must see it; the load is one itself, and so the text has no other
    return tirx.call_extern("int32", UNIFORM_LOAD, T.address_of(memory[index]))


def read_piece(source: Buffer, *at: Index) -> Expr:
    """A piece of an argument of halves whose rows are pieces; `at` is its first half.

    One access of 16 bytes, where WGSL's vectors of halves have 8. All that the kernel reads of the
    argument is read like this.
    """
    return tirx.call_extern("uint32x4", READ_PIECE, T.address_of(source[at]))


def halves_of(piece: Expr) -> list[Expr]:
    """The two vectors of 4 halves of a piece."""
    pairs = [(lane_of(piece, 2 * i), lane_of(piece, 2 * i + 1)) for i in range(2)]
    return [tirx.reinterpret("float16x4", tirx.Shuffle(list(pair), [0, 1])) for pair in pairs]


def piece_of(halves: Sequence[Expr]) -> Expr:
    """A piece of two vectors of 4 halves."""
    words = [tirx.reinterpret("uint32x2", four) for four in halves]
    return joined([lane_of(pair, i) for pair in words for i in range(2)])
