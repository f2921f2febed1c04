"""Norms and rotations of one position's q, k and v, as the prologue of its attention."""

from __future__ import annotations

from functools import partial

from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.tir import LocalVar, bind, store, when
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.targets.kernels.attention.split_block import SplitBlock
from gemma4_compile.targets.kernels.common.blocks import (
    add,
    barrier,
    local,
    power_of_two_at_most,
    shared,
    tree,
    zero,
)

MAX_NORM_LANES = 32  # threads that share the norm of one head
HELD = 6  # vectors that a thread holds of a pair: two of values, of weights, of the rotation


class DecodeNorms:
    """Norms and rotations of the block's query heads and, where it owns them, of k and v."""

    def __init__(
        self, operator: SplitAttention, block: SplitBlock, step: Expr, row: Index = 0
    ) -> None:
        self.operator, self.block, self.step, self._row = operator, block, step, row
        args = block.args
        assert args.q_norm is not None, "a norm has a weight"
        assert args.rotary is not None, "and a rotation"
        self.q_norm, self.k_norm, self.rotary = args.q_norm, args.k_norm, args.rotary
        self.vectors, self.heads = block.vectors, block.division.heads
        self.rows = self.heads + (2 if operator.owns_kv else 0)
        self.pairs = operator.head_dim // 2 // self.vectors.size  # of vectors
        threads = power_of_two_at_most(block.division.threads // self.rows)
        # Two at least: TVM makes no vectors of shared memory that has constant places only.
        self.lanes = min(threads, MAX_NORM_LANES, max(2, power_of_two_at_most(self.pairs)))
        self.shares = local((len(self._iterations()) * HELD * self.vectors.size,))
        self.squares = shared((block.division.threads,))

    def run(self, first: Expr, g: Expr) -> None:
        """Write q to the block's shared memory, and the new key and value next to it.

        A few threads share a row; each has the same vectors of its first and of its second half.
        The new key and value are rounded as the cache rounds them; q stays float32.
        """
        thread, vectors, lanes = self.block.thread, self.vectors, self.lanes
        row = bind(tirx.min(tirx.floordiv(thread, lanes), self.rows - 1))
        lane, column = bind(tirx.floormod(thread, lanes)), bind(self._column(row, first, g))
        of_call = self._place_in_call(row, first)
        for iteration in self._iterations():
            place = bind(tirx.min(lane + iteration * lanes, self.pairs - 1))
            self._load(iteration, row, place, column, *of_call)
        squares = LocalVar("float32", zero())
        for iteration in self._iterations():
            with when(lane + iteration * lanes < self.pairs):
                for half in range(2):
                    share = bind(self._held(iteration, half))
                    squares.set(vectors.dot(squares.value, share, share))
        store(self.squares, squares.value, thread)
        barrier()
        mean = self._sum_of_row(row) / f32(self.operator.head_dim)
        inverse = LocalVar("float32", tirx.rsqrt(mean + f32(self.operator.head.eps)))
        for iteration in self._iterations():
            low, high, low_weight, high_weight, cos, sin = map(
                partial(self._held, iteration), range(6)
            )
            self._hold(iteration, 0, low * vectors.splat(inverse.value) * low_weight)
            self._hold(iteration, 1, high * vectors.splat(inverse.value) * high_weight)
            self._hold(iteration, 2, low * cos - high * sin)
            self._hold(iteration, 3, high * cos + low * sin)
            place = bind(lane + iteration * lanes)
            with when((place < self.pairs) & (thread < self.rows * lanes)):
                for half in range(2):
                    self._write(row, place + half * self.pairs, self._held(iteration, 2 + half))
        barrier()

    def _hold(self, iteration: int, index: int, value: Expr) -> None:
        store(self.shares, value, self.vectors.at(iteration * HELD + index))

    def _held(self, iteration: int, index: int) -> Expr:
        return self.shares[self.vectors.at(iteration * HELD + index)]

    def _iterations(self) -> range:
        return range(-(-self.pairs // self.lanes))

    def _place_in_call(self, row: Expr, first: Expr) -> tuple[Index, Expr]:
        """The row of qkv that a head is in, and the row of the rotary table for it."""
        return self._row, self.step

    def _column(self, row: Expr, first: Expr, g: Expr) -> Expr:
        """The first vector of a row in qkv."""
        return first_vector(self.operator, self.block, row, first, g)

    def _load(
        self, iteration: int, row: Expr, place: Expr, column: Expr, i: Index, step: Expr
    ) -> None:
        """Read a pair of vectors: values of row i, norm weights, cosine, sine."""
        vectors = self.vectors
        places = (place, place + self.pairs)
        channels = [place * vectors.size + lane for lane in range(vectors.size)]
        turned = [self.operator.head.cos_sin(self.rotary, step, c) for c in channels]
        angles = [vectors.join(parts) for parts in zip(*turned, strict=True)]
        for index, half in enumerate(places):
            self._hold(iteration, index, self.block.args.q[i, vectors.at(column + half)])
            self._hold(iteration, 2 + index, self.q_norm[vectors.at(half)])
            self._hold(iteration, 4 + index, angles[index])
        k_norm = self.k_norm
        if k_norm is None:
            return
        with when(row >= self.heads):
            for index, half in enumerate(places):
                self._hold(iteration, 2 + index, k_norm[vectors.at(half)])
        with when(row > self.heads):
            for index, value in enumerate((1.0, 1.0, 1.0, 0.0), 2):
                self._hold(iteration, index, vectors.splat(f32(value)))

    def _sum_of_row(self, row: Expr) -> Expr:
        first = bind(row * self.lanes)
        return tree([self.squares[first + lane] for lane in range(self.lanes)], add)

    def _write(self, row: Expr, place: Expr, value: Expr) -> None:
        write_row(self.operator, self.block, row, place, value)


def first_vector(
    operator: SplitAttention, block: SplitBlock, row: Expr, first: Expr, g: Expr
) -> Expr:
    """The first vector in qkv of a row of the block: of its heads, or of the new key or value."""
    size, heads = block.vectors.size, block.division.heads
    column = (first + row) * (operator.head_dim // size)
    if not operator.owns_kv:
        return column
    k_column, v_column = (tirx.floordiv(c, size) for c in operator.columns.of_kv(g))
    column = tirx.Select(row == heads, k_column, column)
    return tirx.Select(row > heads, v_column, column)


def write_row(
    operator: SplitAttention, block: SplitBlock, row: Expr, place: Expr, value: Expr
) -> None:
    """Write a vector of a row to the block's shared memory."""
    vectors, heads = block.vectors, block.division.heads
    with when(row < heads):
        store(block.query, value, row, vectors.at(block.query_place(place)))
    for index, new in enumerate(block.new or ()):
        with when(row == heads + index):
            rounded = vectors.cast(value, operator.cache_dtype)
            store(new, rounded, block.new_place(place))
