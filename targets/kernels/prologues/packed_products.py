"""Packing of a few rows' products of gate and up, by the block that has a group of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, barrier
from gemma4_compile.targets.kernels.prologues.packed_rows import store_word
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, round_vec4s

NONE = -1  # in the place of a row of the results: there is none


def vec4s_of(block: Block, values: Buffer) -> list[Expr]:
    """The thread's vec4s of products in shared memory; begins with a barrier."""
    vec4s, mine = int(values.shape[0]) // WORD, []
    barrier()
    for iteration in range(-(-vec4s // block.threads)):
        item = bind(tirx.min(block.thread + iteration * block.threads, vec4s - 1))
        lanes = [bind(values[item * WORD + index]) for index in range(WORD)]
        mine.append(bind(tirx.Shuffle(lanes, list(range(WORD)))))
    return mine


def pack_products(
    block: Block,
    values: Buffer,
    results: Sequence[Buffer],
    group: Expr,
    interleaved: bool,
    row_of: Callable[[Expr], Expr],
    count: Expr | None = None,
) -> None:
    """Round one group of products of some rows; it begins with a barrier.

    Parameters
    ----------
    values : (rows * GROUP,) in shared memory
    results : words and scales
    group : its number in a row of the results
    row_of : from a row of these to one of the results, or NONE
    count : of the rows that there are, where the words of all of a tile are written, the others as
        zeros
    """
    vec4s = int(values.shape[0]) // WORD
    mine = vec4s_of(block, values)

    def put_word(vec4: Expr, word: Expr) -> None:
        own = bind(tirx.floordiv(vec4, VEC4S))
        row = bind(row_of(own))
        if count is not None:
            word = tirx.Select(own < count, word, tirx.const(0, "uint32"))
        with when(row >= 0):
            store_word(results[0], word, row, group * VEC4S + tirx.floormod(vec4, VEC4S))

    def put_scale(own: Expr, scale: Expr) -> None:
        row = bind(row_of(own))
        with when(row >= 0 if count is None else own < count):
            store(results[1], scale, row, group)

    round_vec4s(mine, block, vec4s, interleaved, put_word, put_scale)
