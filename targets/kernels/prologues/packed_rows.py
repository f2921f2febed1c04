"""Where the words of a few packed rows lie: row by row, or in tiles of TILE_ROWS rows.

The format: gemma4_compile/operators/activation_quantization.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import (
    TILE_ROWS,
    WORD,
    quantized_specs,
    tiles_of,
)
from gemma4_compile.operators.halved_rows import HALVES, POWERS, halved_specs
from gemma4_compile.operators.static_rounding import words_spec
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, strided
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, round_vec4s


def are_tiled(words: Buffer) -> bool:
    """Return whether words are in tiles."""
    return len(words.shape) > 2


def words_at(words: Buffer, row: Index, group: Index, first: Index) -> tuple[Index, ...]:
    """The place of a group's word."""
    if not are_tiled(words):
        return row, group * VEC4S + first
    return tirx.floordiv(row, TILE_ROWS), group, tirx.floormod(row, TILE_ROWS), first


def store_word(words: Buffer, word: Expr, row: Expr, vec4: Expr) -> None:
    """Store the word of a row's four channels."""
    if not are_tiled(words):
        store(words, word, row, vec4)
        return
    group, own = tirx.floordiv(vec4, VEC4S), tirx.floormod(vec4, VEC4S)
    store(words, word, *words_at(words, row, group, own))


def written_rows(n: Index, words: Buffer) -> Index:
    """Rows whose words are written: of tiles all."""
    return tiles_of(n) * TILE_ROWS if are_tiled(words) else n


@contextmanager
def if_there_is(
    row: Expr,
    n: Index,
    words: Buffer,
    block: Block,
    width: int,
    put_word: Callable[[Expr, Expr], None] | None = None,
) -> Iterator[None]:
    """Run the body, for all threads of a block, if a row of `written_rows` is one of the n.

    Otherwise the block writes zeros: `width` words of the row, or with `put_word`, by the vec4.
    """
    if not are_tiled(words):
        yield
        return
    # Loops of one iteration or none: TVM inserts barriers into those, and not below conditions.
    is_one = bind(tirx.Select(row < n, i32(1), i32(0)))
    with T.serial(0, is_one):
        yield
    with T.serial(0, i32(1) - is_one), strided(block, width) as vec4:
        nothing = tirx.const(0, "uint32")
        if put_word is None:
            store_word(words, nothing, row, vec4)
        else:
            put_word(vec4, nothing)


def store_run(
    packed: Sequence[Buffer], i: Expr, first: Expr, end: Index
) -> tuple[Callable[[Expr, Expr], None], Callable[[Expr, Expr], None]]:
    """Return what stores a block's words, and scales, of row i: its vec4s from `first` on.

    Those from `end` on are another block's, or there are none.
    """
    words, scales = packed

    def put_word(vec4: Expr, word: Expr) -> None:
        with when(first + vec4 < end):
            store_word(words, word, i, first + vec4)

    def put_scale(group: Expr, scale: Expr) -> None:
        with when(first + group * VEC4S < end):
            store(scales, scale, i, tirx.floordiv(first, VEC4S) + group)

    return put_word, put_scale


def packed_results(
    build: FunctionBuilder, width: int, rows: Index, suffix: str = "", tiled: bool = False
) -> list[Buffer]:
    """Declare the packed result."""
    specs = zip(("words", "scales"), quantized_specs(width, rows, tiled), strict=True)
    return [build.arg(name + suffix, *spec) for name, spec in specs]


def left_args(
    build: FunctionBuilder,
    size: tuple[Index, int],
    dtype: str,
    is_int8: bool,
    tiled: bool = False,
    steps_in: bool = False,
    in_halves: bool = False,
) -> list[Buffer]:
    """Declare the left matrix (rows, cols): one tensor, or words and scales of packed rows.

    Of those by a checkpoint's step words alone; halves and powers where it comes as such.
    """
    if in_halves:
        halved = zip((HALVES, POWERS), halved_specs(size[1], size[0]), strict=True)
        return [build.arg(name, *spec) for name, spec in halved]
    if not is_int8:
        return [build.arg("x", size, dtype)]
    if steps_in:
        return [build.arg("words", *words_spec(size[1], size[0]))]
    specs = quantized_specs(size[1], size[0], tiled)
    return [build.arg(name, *spec) for name, spec in zip(("words", "scales"), specs, strict=True)]


def matmul_results(
    build: FunctionBuilder, name: str, shape: tuple[Index, int], packs: bool, tiled: bool = False
) -> list[Buffer]:
    """Declare a matmul's result: words and scales where it is packed, else float32."""
    rows, width = shape
    if not packs:
        return [build.arg(name, shape, "float32")]
    return packed_results(build, width, rows, tiled=tiled)


def store_rounded(
    packed: Sequence[Buffer], i: Expr, row_slice: RowSlice, values: Sequence[Expr], order: bool
) -> None:
    """Round a block's slice of row i, by fours of channels, into words and scales."""
    words, scales = packed
    round_vec4s(
        values,
        row_slice.block,
        row_slice.width // WORD,
        order,
        lambda vec4, word: store_word(words, word, i, vec4),
        lambda group, own: store(scales, own, i, group),
    )
