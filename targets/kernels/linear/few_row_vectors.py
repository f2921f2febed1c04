"""Rows of x that a block of a few-row matmul packs for itself, in shared memory.

The rows are rounded as they come (`round_rows`), or the block makes them first: the norms of a
residual (`norm_rows`) or the splits of an attention put together (`combine_rows`). What multiplies
them reads words and scales, wherever those came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import NormVector
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockSums,
    add,
    barrier,
    local,
    shared,
    sum_over_subgroup,
    tree,
)
from gemma4_compile.targets.kernels.common.row_slice import OneRow, RowSlice
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.linear.int8_vectors import (
    NormArguments,
    combine_vec4s,
    largest_memory,
    norm_factors,
    norm_parts,
    round_vec4s,
)

_VEC4 = Vectors(WIDEST)

Squares = tuple[Expr, ...]
Packed = tuple[Buffer, Buffer]
"""Words (rows, width / WORD) and scales (rows, width / GROUP)."""


@dataclass(frozen=True)
class BlockRows:
    """Rows of x that a block multiplies.

    Attributes
    ----------
    begin : the first of them
    count : rows that there are, the same in all threads; at least one
    most : rows that there may be, each of which is in the kernel's text
    """

    begin: Index
    count: Expr
    most: int

    def if_exists(self, i: int) -> AbstractContextManager[None]:
        """Run the body if the block has a row i."""
        return when(self.count > i) if i else nullcontext()


class _Rows:
    """The thread's slices of the block's rows, in registers; only of those that there are.

    Parameters
    ----------
    rows, block : whose slices
    width : channels of a row
    """

    def __init__(self, rows: BlockRows, block: Block, width: int) -> None:
        self.slice = RowSlice(block, width)
        self._rows, self._size = rows, self.slice.iterations
        self._memory = local((rows.most * self._size * WIDEST,))

    def load(self, i: int, buffer: Buffer) -> None:
        """Read row i of the block."""
        self.put(i, self.slice.load(buffer, self._rows.begin + i))

    def put(self, i: int, vec4s: Sequence[Expr]) -> None:
        """Set the slice of row i."""
        for at, vec4 in enumerate(vec4s):
            store(self._memory, _VEC4.cast(vec4, "float32"), _VEC4.at(i * self._size + at))

    def of(self, i: int) -> list[Expr]:
        """The slice of row i."""
        return [self._memory[_VEC4.at(i * self._size + at)] for at in range(self._size)]


class _PackedRows:
    """Words and scales of the block's rows, from 0 on, in shared memory."""

    def __init__(self, rows: BlockRows, row_slice: RowSlice, interleaved: bool) -> None:
        width = row_slice.width
        self.words = shared((rows.most, width // WORD), "uint32")
        self.scales = shared((rows.most, width // GROUP))
        self._slice, self._interleaved = row_slice, interleaved
        self._magnitudes = largest_memory(row_slice.block, row_slice.groups)

    def put(self, i: int, vec4s: Sequence[Expr]) -> None:
        """Round the block's slices of row i."""
        if self._magnitudes is not None and i:
            barrier()  # those of the row before may still be being read
        round_vec4s(
            vec4s,
            self._slice.block,
            self._slice.groups,
            self._interleaved,
            lambda vec4, word: store(self.words, word, i, vec4),
            lambda group, scale: store(self.scales, scale, i, group),
            self._magnitudes,
        )


def round_rows(rows: BlockRows, block: Block, x: Buffer, interleaved: bool) -> Packed:
    """The block's rows, from 0 on; ends with a barrier."""
    mine = _Rows(rows, block, int(x.shape[1]))
    for i in range(rows.most):
        with rows.if_exists(i):
            mine.load(i, x)
    packed = _PackedRows(rows, mine.slice, interleaved)
    for i in range(rows.most):
        with rows.if_exists(i):
            packed.put(i, mine.of(i))
    barrier()
    return packed.words, packed.scales


def norm_rows(
    rows: BlockRows, block: Block, args: NormArguments, out: Buffer, writes: Expr, interleaved: bool
) -> Packed:
    """The norms of the block's rows, from 0 on; ends with a barrier.

    All rows are read at the start, and stay in registers. r' is written to `out` where `writes`
    holds.
    """
    norm = args.norm
    branches, residuals = (_Rows(rows, block, norm.width) for _ in range(2))
    row_slice = branches.slice
    for i in range(rows.most):
        with rows.if_exists(i):
            branches.load(i, args.branch)
            residuals.load(i, args.residual)
    w_branch = row_slice.load(args.w_branch)
    w_next = None if args.w_next is None else row_slice.load(args.w_next)
    scalar = bind(args.scalar[0]) if args.scalar is not None else f32(1.0)

    def parts_of(i: int) -> Squares:
        branch = branches.of(i)
        weighed = row_slice.map(lambda b, w: b * w, branch, w_branch)
        parts = norm_parts(norm, row_slice, branch, residuals.of(i), weighed)
        branches.put(i, weighed)
        return tuple(parts)

    scales_of = _scales_at_once if block.subgroup_width else _scales_in_turn
    factors = scales_of(rows, block, norm, scalar, parts_of)
    packed = _PackedRows(rows, row_slice, interleaved)
    for i in range(rows.most):
        with rows.if_exists(i):
            scale, scale_next = (row_slice.splat(factor) for factor in factors(i))
            total = row_slice.map(
                lambda r, c, by=scale: (r + c * by) * row_slice.splat(scalar),
                residuals.of(i),
                branches.of(i),
            )
            with when(writes):
                row_slice.store(out, total, rows.begin + i)
            if w_next is not None:
                total = row_slice.map(lambda r, w, by=scale_next: r * by * w, total, w_next)
            packed.put(i, total)
    barrier()
    return packed.words, packed.scales


def combine_rows(
    rows: BlockRows, block: Block, splits: tuple[Buffer, Buffer], heads: int, interleaved: bool
) -> Packed:
    """The attention of the block's rows from its splits, from 0 on; ends with a barrier."""
    width = heads * int(splits[0].shape[-1])
    packed = _PackedRows(rows, RowSlice(block, width), interleaved)
    for i in range(rows.most):
        with rows.if_exists(i):
            o_partial, split_lse = (OneRow(one, rows.begin + i) for one in splits)
            packed.put(i, combine_vec4s(block, o_partial, split_lse, heads))
    barrier()
    return packed.words, packed.scales


def _scales_in_turn(
    rows: BlockRows,
    block: Block,
    norm: NormVector,
    scalar: Expr,
    parts_of: Callable[[int], Squares],
) -> Callable[[int], Sequence[Expr]]:
    """The scales of each row's two norms, row by row; the block meets for each."""
    sums, factors = BlockSums(block), local((rows.most * 2,))
    for i in range(rows.most):
        with rows.if_exists(i):
            for place, factor in enumerate(norm_factors(norm, sums(parts_of(i)), scalar)):
                store(factors, factor, 2 * i + place)
    return lambda i: [bind(factors[2 * i + place]) for place in range(2)]


def _scales_at_once(
    rows: BlockRows,
    block: Block,
    norm: NormVector,
    scalar: Expr,
    parts_of: Callable[[int], Squares],
) -> Callable[[int], Sequence[Expr]]:
    """The same for all rows together: the block meets twice, once for the sums of subgroups."""
    simd = min(block.subgroup_width, block.threads)
    subgroups = block.threads // simd
    memory, factors = shared((rows.most * subgroups * WIDEST,)), shared((rows.most * 2,))
    for i in range(rows.most):
        with rows.if_exists(i):
            sums = [sum_over_subgroup(part, simd) for part in parts_of(i)]
            padded = [one.value for one in sums] + [f32(0.0)] * (WIDEST - len(sums))
            with when(tirx.floormod(block.thread, simd) == 0):
                place = _VEC4.at(i * subgroups + tirx.floordiv(block.thread, simd))
                store(memory, _VEC4.join([bind(value) for value in padded]), place)
    barrier()
    with when(block.thread < rows.count):
        first = bind(block.thread * subgroups)
        total = bind(tree([memory[_VEC4.at(first + one)] for one in range(subgroups)], add))
        squares = [bind(lane) for lane in _VEC4.lanes(total)]
        for place, factor in enumerate(norm_factors(norm, squares, scalar)):
            store(factors, factor, 2 * block.thread + place)
    barrier()
    return lambda i: [bind(factors[2 * i + place]) for place in range(2)]
