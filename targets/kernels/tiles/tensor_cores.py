"""Tensor cores: matrices of 16 x 8 sums by warps, and what brings their operands into place.

A warp multiplies 16 rows of A by 8 rows of B over 16 channels: float16 operands, float32 sums. Its
threads hold all three in registers, which is why operands come from shared memory by an instruction
of their own. Halves are moved two at a time as words. Products of signed bytes are of 8 by 8 rows,
and their sums int32. The calls are opaque to TVM; CUDA's text of
them is in targets/cuda_tensor_cores.py.

References
----------
PTX ISA: `mma.sync.aligned.m16n8k8`, `mma.sync.aligned.m8n8k16`, `ldmatrix`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import shared

WARP = 32
M, N, K = 16, 8, 16  # rows of A, rows of B and channels of one product
PIECE = 8  # halves that a thread moves at a time: 16 bytes
WORD_HALVES = 2
PIECE_WORDS = PIECE // WORD_HALVES
A_WORDS, B_WORDS, SUMS = 4, 2, 4  # registers of a thread for one product
BYTE_ROWS, BYTE_SUMS = 8, 2  # rows of either side of a product of bytes, and a thread's sums

COPY = "gemma4_copy_16_bytes"
STREAM = "gemma4_stream_16_bytes"
COPY_HALF = "gemma4_copy_8_bytes"
LOAD_HALF = "gemma4_load_8_of_16_bytes"
BEGIN_COPY = "gemma4_begin_copy"
END_COPY = "gemma4_end_copy"
WAIT_FOR_COPIES = "gemma4_wait_for_copies"
BEGIN_STAGE_COPY = "gemma4_begin_stage_copy"
BEGIN_STAGE_HALF = "gemma4_begin_stage_copy_of_8_bytes"
END_STAGE_COPY = "gemma4_end_stage_copy"
END_STAGE_HALF = "gemma4_end_stage_copy_of_8_bytes"
END_STAGE = "gemma4_end_stage"
WAIT_FOR_STAGES = "gemma4_wait_for_all_stages"
WAIT_BUT_ONE = "gemma4_wait_for_all_stages_but_one"
WAIT_BUT_TWO = "gemma4_wait_for_all_stages_but_two"
LOAD_WORD = "gemma4_load_4_of_16_bytes"
STORE_LANE = "gemma4_store_lane"
LOAD = "gemma4_load_matrices"
LOAD_TRANSPOSED = "gemma4_load_matrices_transposed"
MULTIPLY_ADD = "gemma4_multiply_add"
MULTIPLY_ADD_BYTES = "gemma4_multiply_add_bytes"
MULTIPLY_ROWS = "gemma4_multiply_rows"
MULTIPLY_ADD_ROWS = "gemma4_multiply_add_rows"
MULTIPLY_ADD_ROWS_EXACTLY = "gemma4_multiply_add_rows_exactly"
MULTIPLY_ADD_GROUP = "gemma4_multiply_add_group"
MULTIPLY_ADD_GROUP_EXACTLY = "gemma4_multiply_add_group_exactly"
MULTIPLY_ADD_LEVELS = "gemma4_multiply_add_levels"
SUM_ROWS = "gemma4_sum_rows"
ADD_SCALED = "gemma4_add_scaled"
PACK = "gemma4_pack_halves"
CLIP = "gemma4_clip_halves"
DECODE = "gemma4_decode_bytes"
WARP_BARRIER = "gemma4_warp_barrier"


def _call(name: str, *args: Expr) -> None:
    T.evaluate(tirx.call_extern("void", name, *args))


def address(buffer: Buffer, *indices: Index) -> Expr:
    """Place of an element."""
    return T.address_of(buffer[tuple(indices)])


def shared_pieces(count: int, dtype: str = "uint32") -> Buffer:
    """Memory of the thread block in pieces; an element is a piece, of four words or float32."""
    return shared((count,), f"{dtype}x{PIECE_WORDS}")


def copy_piece(to: Expr, source: Expr) -> None:
    """Copy 16 bytes between two addresses, both multiples of 16."""
    _call(COPY, to, source)


def stream_piece(to: Expr, source: Expr) -> None:
    """Read 16 bytes of an argument that nobody reads again, here and no later, into registers."""
    _call(STREAM, to, source)


def copy_half_piece(to: Expr, source: Expr) -> None:
    """Copy 8 bytes between two addresses, both multiples of 8."""
    _call(COPY_HALF, to, source)


def load_half_piece(to: Expr, piece: Expr, half: Expr) -> None:
    """Read one half of a piece, a place of 16 bytes, into two words."""
    _call(LOAD_HALF, to, piece, half)


def begin_copy(registers: Expr, to: Expr, source: Expr) -> None:
    """Begin to copy 16 bytes of an argument to shared memory, of which nobody may read any more.

    Where nothing copies by itself they wait in four words of the thread for `end_copy`.
    """
    _call(BEGIN_COPY, registers, to, source)


def end_copy(to: Expr, registers: Expr) -> None:
    """Copy what `begin_copy` left in registers."""
    _call(END_COPY, to, registers)


def wait_for_copies() -> None:
    """Wait for the thread's copies; others see them after a barrier."""
    _call(WAIT_FOR_COPIES)


def begin_stage_copy(registers: Expr, to: Expr, source: Expr, is_half: bool = False) -> None:
    """Begin to copy 16 bytes of an argument, or 8, to a stage of shared memory that nobody reads.

    Stages end by `end_stage`, and `wait_for_stage` waits for them in this order. `registers` are
    words that nothing touches where the copy goes by itself, or is made at once.
    """
    _call(BEGIN_STAGE_HALF if is_half else BEGIN_STAGE_COPY, registers, to, source)


def end_stage_copy(to: Expr, registers: Expr, is_half: bool = False) -> None:
    """What `begin_stage_copy` copies is there, as far as the thread itself is concerned."""
    _call(END_STAGE_HALF if is_half else END_STAGE_COPY, to, registers)


def end_stage() -> None:
    """All copies begun since the stage before are one."""
    _call(END_STAGE)


def wait_for_stage(but: int) -> None:
    """Wait for the thread's copies of all stages but the last ones, two at most."""
    _call((WAIT_FOR_STAGES, WAIT_BUT_ONE, WAIT_BUT_TWO)[but])


def load_word(to: Expr, piece: Expr, word: Expr) -> None:
    """Read one word of a piece, a place of 16 bytes."""
    _call(LOAD_WORD, to, piece, word)


def store_lane(piece: Expr, lane: Expr, value: Expr) -> None:
    """Write one of the four float32 of a piece."""
    _call(STORE_LANE, piece, lane, value)


def load_matrices(to: Expr, source: Expr, transposed: bool = False) -> None:
    """Read four matrices of 8 x 8 halves from shared memory into four words of each thread.

    `source` is a row's piece: threads 0 to 7 give the rows of the first matrix, and so on.
    """
    _call(LOAD_TRANSPOSED if transposed else LOAD, to, source)


def multiply_add(sums: Expr, a: Expr, b: Expr) -> None:
    """Add the product of one A and one B to four float32 of each thread.

    Thread t has the sums of rows t / 4 and t / 4 + 8, columns t % 4 * 2 and the next, in this
    order.
    """
    _call(MULTIPLY_ADD, sums, a, b)


def multiply_add_bytes(to: Expr, sums: Expr, a: Expr, b: Expr) -> None:
    """Write the product of one A and one B of bytes plus two int32 of each thread to two others.

    Thread t gives channels t % 4 * 4 and the next three of row t / 4 of either. It has the sums of
    A's row t / 4 with B's rows t % 4 * 2 and the next.
    """
    _call(MULTIPLY_ADD_BYTES, to, sums, a, b)


def multiply_rows(to: Expr, sums: Expr, a: Expr, b: Expr) -> None:
    """Write the product of 16 rows with 8 over 32 channels of bytes plus four int32 to four others.

    Sums and operands lie as in `multiply_add_group`.
    """
    _call(MULTIPLY_ROWS, to, sums, a, b)


def multiply_add_rows(
    sums: Expr,
    operands: tuple[Expr, Expr],
    begins: Expr,
    scales: tuple[Expr, Expr],
    is_exact: bool,
) -> None:
    """As `multiply_add_group`, of integers that begin with four others, on 3 * 2**22 as a float32.

    Parameters
    ----------
    is_exact : 3 * 2**22 times a scale of A is a float32, as of float16
    """
    name = MULTIPLY_ADD_ROWS_EXACTLY if is_exact else MULTIPLY_ADD_ROWS
    _call(name, sums, *operands, begins, *scales)


def multiply_add_group(
    sums: Expr, a: Expr, b: Expr, a_scales: Expr, b_scales: Expr, is_exact: bool
) -> None:
    """Add the scaled product of 16 rows with 8 over 32 channels of bytes to four float32.

    Sums and operands lie as in `multiply_add`, with four bytes where that has two halves. A thread
    has the scales of its two rows and of its two columns.

    Parameters
    ----------
    is_exact : 3 * 2**22 times a scale of `b_scales` is a float32, as of float16
    """
    name = MULTIPLY_ADD_GROUP_EXACTLY if is_exact else MULTIPLY_ADD_GROUP
    _call(name, sums, a, b, a_scales, b_scales)


def multiply_add_levels(sums: Expr, a: Expr, b: Expr) -> None:
    """Add the product of 16 rows with 8 over 32 channels of bytes to four int32 of each thread."""
    _call(MULTIPLY_ADD_LEVELS, sums, a, b)


def sum_rows(to: Expr, a: Expr, scales: Expr) -> None:
    """Write the sums of 32 bytes of A's rows, scaled, of a thread's two rows."""
    _call(SUM_ROWS, to, a, scales)


def add_scaled(sums: Expr, rows: Expr, columns: Expr) -> None:
    """Add products of two float32 of rows and two of columns to a thread's sums."""
    _call(ADD_SCALED, sums, rows, columns)


def warp_barrier() -> None:
    """All threads of the warp arrive, and see each other's shared memory."""
    _call(WARP_BARRIER)  # TVM's own has no text for CUDA


def packed(low: Expr, high: Expr) -> Expr:
    """Two float32 as the halves of a word, rounded to the nearest."""
    return tirx.call_pure_extern("uint32", PACK, low, high)


def clipped_word(word: Expr, bounds: Sequence[Expr]) -> Expr:
    """Both halves of a word within two float32."""
    return tirx.call_pure_extern("uint32", CLIP, word, *bounds)


def decode_bytes(to: Expr, word: Expr, zero_point: Expr, scale: Expr) -> None:
    """Write four scaled bytes of a word as the halves of two words."""
    _call(DECODE, to, word, zero_point, scale)
