"""Norms and rotations of a block's queries where each thread has the same channels of all of them.

A thread reads the weights and angles of its channels once, and holds nothing but those and a pair
of vectors a query.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.tir import LocalVar, bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.attention.decode_norms import first_vector, write_row
from gemma4_compile.targets.kernels.attention.split_block import SplitBlock
from gemma4_compile.targets.kernels.common.blocks import (
    WARP,
    add,
    barrier,
    local,
    shared,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour


class ColumnNorms:
    """Norms and rotations of the block's query heads and, where it owns them, of k and v.

    A thread has one vector of the first half of a head and that of the second half it turns with.
    """

    def __init__(
        self, operator: SplitAttention, block: SplitBlock, step: Expr, row: Index = 0
    ) -> None:
        self.operator, self.block, self.step, self._row = operator, block, step, row
        assert block.args.q_norm is not None, "a norm has a weight"
        assert block.args.rotary is not None, "and a rotation"
        self.q_norm, self.k_norm = block.args.q_norm, block.args.k_norm
        self.rotary = block.args.rotary
        self.vectors, self.heads = block.vectors, block.division.heads
        self.rows = self.heads + (2 if operator.owns_kv else 0)
        self.pairs = operator.head_dim // 2 // self.vectors.size  # of vectors
        self.at_once = block.division.threads // self.pairs  # rows
        self.rounds = -(-self.rows // self.at_once)
        size = 2 * self.vectors.size
        self.values = local((self.rounds * size,))
        self.weights, self.angles = local((size,)), local((size,))
        self.squares = shared((self.rows, self.pairs // WARP))

    def run(self, first: Expr, g: Expr) -> None:
        """Write q to the block's shared memory, and the new key and value next to it.

        The new key and value are rounded as the cache rounds them; q stays float32.
        """
        vectors, pairs = self.vectors, self.pairs
        thread = self.block.thread
        column, group = bind(tirx.floormod(thread, pairs)), bind(tirx.floordiv(thread, pairs))
        rows = [bind(group + index * self.at_once) for index in range(self.rounds)]
        for index, row in enumerate(rows):
            number = tirx.min(row, self.rows - 1)
            source = bind(first_vector(self.operator, self.block, number, first, g))
            for half in range(2):
                value = self.block.args.q[self._row, vectors.at(source + column + half * pairs)]
                store(self.values, value, vectors.at(index * 2 + half))
        channels = [column * vectors.size + lane for lane in range(vectors.size)]
        turned = [self.operator.head.cos_sin(self.rotary, self.step, c) for c in channels]
        for half, parts in enumerate(zip(*turned, strict=True)):
            store(self.angles, vectors.join(parts), vectors.at(half))
            store(self.weights, self.q_norm[vectors.at(column + half * pairs)], vectors.at(half))
        for index, row in enumerate(rows):
            squares = LocalVar("float32", zero())
            for half in range(2):
                share = bind(self.values[vectors.at(index * 2 + half)])
                squares.set(vectors.dot(squares.value, share, share))
            distance = WARP // 2
            while distance:
                squares.set(squares.value + from_neighbour(squares.value, distance))
                distance //= 2
            with when((tirx.floormod(thread, WARP) == 0) & (row < self.rows)):
                store(self.squares, squares.value, row, tirx.floordiv(column, WARP))
        barrier()
        for index, row in enumerate(rows):
            with when(row < self.rows):
                self._turn(index, row, column)
        barrier()

    def _turn(self, index: int, row: Expr, column: Expr) -> None:
        """Norm and rotate one of the thread's pairs, and write it."""
        vectors = self.vectors
        shares = [self.squares[row, warp] for warp in range(self.pairs // WARP)]
        mean = tree(shares, add) / f32(self.operator.head_dim)
        inverse = LocalVar("float32", tirx.rsqrt(mean + f32(self.operator.head.eps)))
        weights, angles = self._weights_of(index, row, column)
        factor = vectors.splat(inverse.value)
        low, high = (
            bind(self.values[vectors.at(index * 2 + half)] * factor * weights[vectors.at(half)])
            for half in range(2)
        )
        cos, sin = (bind(angles[vectors.at(half)]) for half in range(2))
        turned = local((2 * vectors.size,))
        store(turned, low * cos - high * sin, vectors.at(0))
        store(turned, high * cos + low * sin, vectors.at(1))
        for half in range(2):
            value = turned[vectors.at(half)]
            write_row(self.operator, self.block, row, column + half * self.pairs, value)

    def _weights_of(self, index: int, row: Expr, column: Expr) -> tuple[Buffer, Buffer]:
        """The weights and angles of a row: a key has weights of its own, a value neither."""
        if (index + 1) * self.at_once <= self.heads:
            return self.weights, self.angles
        vectors = self.vectors
        own = [local((2 * vectors.size,)) for _ in range(2)]
        for half in range(2):
            for to, source in zip(own, (self.weights, self.angles), strict=True):
                store(to, source[vectors.at(half)], vectors.at(half))
        k_norm = self.k_norm
        if k_norm is not None:
            with when(row == self.heads):
                for half in range(2):
                    weight = k_norm[vectors.at(column + half * self.pairs)]
                    store(own[0], weight, vectors.at(half))
        with when(row > self.heads):
            for half, angle in enumerate((1.0, 0.0)):
                store(own[0], vectors.splat(f32(1.0)), vectors.at(half))
                store(own[1], vectors.splat(f32(angle)), vectors.at(half))
        return own[0], own[1]
