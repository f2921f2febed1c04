"""Rows of x that a block of a few-row matmul packs for itself, in shared memory.

The rows are rounded as they come (`round_rows`), or they are the norms of a residual that the block
makes first (`norm_rows`). What multiplies them reads words and scales, wherever those came from.
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
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.linear.int8_vectors import (
    NormArguments,
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


def round_rows(rows: BlockRows, block: Block, x: Buffer, interleaved: bool) -> Packed:
    """The block's rows, from 0 on; ends with a barrier."""
    per_row, groups = int(x.shape[1]) // WORD, int(x.shape[1]) // GROUP
    words, scales = shared((rows.most, per_row), "uint32"), shared((rows.most, groups))
    count, vec4s = rows.most * per_row, []
    for iteration in range(-(-count // block.threads)):
        item = bind(tirx.min(block.thread + iteration * block.threads, count - 1))
        row = bind(tirx.min(tirx.floordiv(item, per_row), rows.count - 1))
        vec4 = x[rows.begin + row, _VEC4.at(tirx.floormod(item, per_row))]
        vec4s.append(bind(vec4.astype(f"float32x{WORD}")))

    def put_word(vec4: Expr, word: Expr) -> None:
        store(words, word, tirx.floordiv(vec4, per_row), tirx.floormod(vec4, per_row))

    def put_scale(group: Expr, scale: Expr) -> None:
        store(scales, scale, tirx.floordiv(group, groups), tirx.floormod(group, groups))

    round_vec4s(vec4s, block, count, interleaved, put_word, put_scale)
    barrier()
    return words, scales


def norm_rows(
    rows: BlockRows, block: Block, args: NormArguments, out: Buffer, writes: Expr, interleaved: bool
) -> Packed:
    """The norms of the block's rows, from 0 on; ends with a barrier.

    All rows are read at the start, and stay in registers. r' is written to `out` where `writes`
    holds.
    """
    norm, row_slice = args.norm, RowSlice(block, args.norm.width)
    count, size = rows.most, row_slice.iterations
    words = shared((count, norm.width // WORD), "uint32")
    scales = shared((count, norm.width // GROUP))
    branches, residuals = (local((count * size * WIDEST,)) for _ in range(2))
    for i in range(count):
        with rows.if_exists(i):
            for buffer, to in ((args.branch, branches), (args.residual, residuals)):
                for at, vec4 in enumerate(row_slice.load(buffer, rows.begin + i)):
                    store(to, vec4, _VEC4.at(i * size + at))
    w_branch = row_slice.load(args.w_branch)
    w_next = None if args.w_next is None else row_slice.load(args.w_next)
    scalar = bind(args.scalar[0]) if args.scalar is not None else f32(1.0)

    def of_row(values: Buffer, i: int) -> list[Expr]:
        return [values[_VEC4.at(i * size + at)] for at in range(size)]

    def parts_of(i: int) -> Squares:
        branch = of_row(branches, i)
        weighed = row_slice.map(lambda b, w: b * w, branch, w_branch)
        parts = norm_parts(norm, row_slice, branch, of_row(residuals, i), weighed)
        for at, vec4 in enumerate(weighed):
            store(branches, vec4, _VEC4.at(i * size + at))
        return tuple(parts)

    scales_of = _scales_in_turn if not block.subgroup_width else _scales_at_once
    factors = scales_of(rows, block, norm, scalar, parts_of)
    largest = largest_memory(block, row_slice.groups)
    for i in range(count):
        with rows.if_exists(i):
            scale, scale_next = (row_slice.splat(factor) for factor in factors(i))
            total = row_slice.map(
                lambda r, c, by=scale: (r + c * by) * row_slice.splat(scalar),
                of_row(residuals, i),
                of_row(branches, i),
            )
            with when(writes):
                row_slice.store(out, total, rows.begin + i)
            x = total
            if w_next is not None:
                x = row_slice.map(lambda value, w, by=scale_next: value * by * w, total, w_next)
            if largest is not None and i:
                barrier()  # magnitudes of the row before may still be being read
            round_vec4s(
                x,
                block,
                row_slice.groups,
                interleaved,
                lambda vec4, word, i=i: store(words, word, i, vec4),
                lambda group, own, i=i: store(scales, own, i, group),
                largest,
            )
    barrier()
    return words, scales


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
