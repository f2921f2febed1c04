"""Products by warpgroups, four warps that multiply together: Hopper's `wgmma`.

A warpgroup multiplies 64 rows of A, which its threads hold in registers as halves, by up to 256
rows of B in shared memory over 16 channels, and holds the sums. It does so by itself, some products
behind another, while its threads go on: what a product reads may be written again only after a
wait. The calls are opaque to TVM; CUDA's text of them is in targets/cuda_warpgroups.py.

References
----------
PTX ISA: `wgmma.mma_async`, "Matrix fragments for wgmma.mma_async.m64nNk16", "Shared Memory Matrix
Layout", 128-Byte swizzling.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Expr

ROWS = 64  # of A
LINE = 64  # channels of a row of B that lie together: 128 bytes
LINE_PIECES = 8  # of 16 bytes
K = 16  # channels of a product: two pieces of B
MOST_COLUMNS = 256  # rows of B

MULTIPLY = "gemma4_warpgroup_multiply_"
BEGIN = "gemma4_warpgroup_begin"
COMMIT = "gemma4_warpgroup_commit"
WAIT_BUT_ONE = "gemma4_warpgroup_wait_but_one"
WAIT = "gemma4_warpgroup_wait"
SHOW = "gemma4_show_to_warpgroups"
DECODE_NIBBLES = "gemma4_decode_nibbles"
DECODE_OFFSET_NIBBLES = "gemma4_decode_offset_nibbles"
DECODE_SIXES = "gemma4_decode_sixes"
HAS_WARPGROUPS = "gemma4_has_warpgroups"


def _call(name: str, *args: Expr) -> None:
    T.evaluate(tirx.call_extern("void", name, *args))


def multiply(columns: int, sums: Expr, a: Expr, line: Expr, part: int) -> None:
    """Begin to add the products of A and 16 channels of B to `columns / 2` float32 of each thread.

    A thread's four words of A and four sums of each eight rows of B lie as in
    `tensor_cores.multiply_add`, of 16 rows of a warp each.

    Parameters
    ----------
    line : of B, row after row; a multiple of 1024. Piece p of row r is in place ``p ^ (r % 8)``
    part : which 16 channels of the line, 0 to 3
    """
    _call(f"{MULTIPLY}{columns}", sums, a, line, tirx.const(part, "int32"))


def begin_products() -> None:
    """What registers hold is seen by the products that follow."""
    _call(BEGIN)


def commit_products() -> None:
    """The products since the last call are waited for together."""
    _call(COMMIT)


def wait_for_products(but_one: bool = False) -> None:
    """Wait for all products, or for all but those of the last commit."""
    _call(WAIT_BUT_ONE if but_one else WAIT)


def show_to_warpgroups() -> None:
    """Products behind the next barrier see what the thread wrote to shared memory."""
    _call(SHOW)


def decode_nibbles(to: Expr, word: Expr, zero_point: Expr, scale: Expr) -> None:
    """Write eight scaled nibbles of a word as the halves of four words: 0 and 4, 1 and 5, ..."""
    _call(DECODE_NIBBLES, to, word, zero_point, scale)


def decode_offset_nibbles(
    to: Expr, word: Expr, zero_point: Expr, scale: Expr, offset: Expr
) -> None:
    """`decode_nibbles` plus an offset, rounded once; the zero point is a half, too."""
    _call(DECODE_OFFSET_NIBBLES, to, word, zero_point, scale, offset)


def decode_sixes(
    to: Expr, word: Expr, upper: Expr, eight: int, zero_point: Expr, scale: Expr
) -> None:
    """`decode_nibbles` of six bits.

    Parameters
    ----------
    upper : the word with the upper two bits of a run (`packings.Sixes`)
    eight : which of the run's two
    """
    _call(DECODE_SIXES, to, word, upper, tirx.const(eight, "int32"), zero_point, scale)


def has_warpgroups() -> Expr:
    """Whether the GPU multiplies by warpgroups: asked by the host, before a launch."""
    return tirx.call_extern("int32", HAS_WARPGROUPS) != 0
