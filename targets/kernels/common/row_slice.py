"""A thread's slice of a row, in registers: read once, by four channels where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from tvm import tirx

from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, zero
from gemma4_compile.targets.kernels.common.vectors import Vectors

Readable: TypeAlias = "Buffer | StackRow | WeighedPairs"


@dataclass(frozen=True)
class RowSlice:
    """The channels of a row that one thread of a block owns: every `threads`-th group of `size`.

    Attributes
    ----------
    block : whose threads share the row
    width : channels of the row
    """

    block: Block
    width: int

    @property
    def vectors(self) -> Vectors:
        """A group as one value."""
        return Vectors.dividing(self.width)

    @property
    def size(self) -> int:
        """Channels of a group: 4, or 1 where the width is no multiple of 4."""
        return self.vectors.size

    @property
    def groups(self) -> int:
        """Groups of the row."""
        return self.width // self.size

    @property
    def iterations(self) -> int:
        """Groups of a thread, at most."""
        return -(-self.groups // self.block.threads)

    def _group(self, iteration: int) -> Expr:
        return self.block.thread + iteration * self.block.threads

    def _is_ragged(self, iteration: int) -> bool:
        return (iteration + 1) * self.block.threads > self.groups

    def splat(self, value: Expr) -> Expr:
        """A named scalar as a value of the row_slice's type."""
        return self.vectors.splat(value)

    def load(self, buffer: Readable, *row: Index) -> list[Expr]:
        """The slice of ``buffer[row]``; groups beyond the end repeat the last one."""
        return self.load_from(buffer, 0, *row)

    def load_from(self, buffer: Readable, begin: int, *row: Index) -> list[Expr]:
        """The slice of ``buffer[row, begin:]``, `begin` a multiple of 4."""
        values = []
        for iteration in range(self.iterations):
            group = self._group(iteration)
            if self._is_ragged(iteration):
                group = tirx.min(group, self.groups - 1)
            place = self.vectors.from_channel(bind(group) * self.size + begin)
            values.append(bind(buffer[(*row, place)]))
        return values

    def store(self, buffer: Buffer, values: Sequence[Expr], *row: Index) -> None:
        """Write the slice to ``buffer[row]`` in the buffer's type."""
        self.store_from(buffer, values, 0, *row)

    def store_from(self, buffer: Buffer, values: Sequence[Expr], begin: int, *row: Index) -> None:
        """Write the slice to ``buffer[row, begin:]``, `begin` a multiple of 4."""
        vectors = self.vectors

        def put(group: Expr, value: Expr) -> None:
            place = vectors.from_channel(group * self.size + begin)
            store(buffer, vectors.cast(value, buffer.dtype), *row, place)

        self._each(values, put)

    def numbered(self, values: Sequence[Expr]) -> Iterator[tuple[Expr, Expr]]:
        """Group and value of each; groups beyond the end are the last one, as of `load`."""
        for iteration, value in enumerate(values):
            group = self._group(iteration)
            if self._is_ragged(iteration):
                group = tirx.min(group, self.groups - 1)
            yield bind(group), value

    def visit(self, values: Sequence[Expr], body: Callable[[Expr, Expr], None]) -> None:
        """`body(channel, value)` for every channel of the row_slice."""

        def channels(group: Expr, value: Expr) -> None:
            for lane, single in enumerate(self.vectors.lanes(value)):
                body(group * self.size + lane, single)

        self._each(values, channels)

    def _each(self, values: Sequence[Expr], body: Callable[[Expr, Expr], None]) -> None:
        for iteration, value in enumerate(values):
            group = bind(self._group(iteration))
            with when(group < self.groups) if self._is_ragged(iteration) else nullcontext():
                body(group, value)

    def dot(self, left: Sequence[Expr], right: Sequence[Expr]) -> Expr:
        """The sum of products over the row_slice: float32."""
        total = zero()
        for iteration, (a, b) in enumerate(zip(left, right, strict=True)):
            product = bind(a * b)
            part = self.vectors.sum(product)
            if self._is_ragged(iteration):
                part = tirx.Select(self._group(iteration) < self.groups, part, zero())
            total = bind(total + part)
        return total

    def map(self, combine: Callable[..., Expr], *shares: Sequence[Expr]) -> list[Expr]:
        """`combine` on each group of several shares."""
        return [bind(combine(*values)) for values in zip(*shares, strict=True)]


@dataclass(frozen=True)
class StackRow:
    """One of several vectors in an argument (count, width), read as an argument of its own."""

    stack: Buffer
    number: int

    def __getitem__(self, place: Index | tuple[Index, ...]) -> Expr:
        places = place if isinstance(place, tuple) else (place,)
        return self.stack[(self.number, *places)]


@dataclass(frozen=True)
class WeighedPairs:
    """The chosen experts' outputs (rows * top_k, width), read as their weighted sum of a row."""

    outputs: Buffer
    weights: Buffer

    def __getitem__(self, place: Index | tuple[Index, ...]) -> Expr:
        assert isinstance(place, tuple), "a row and what is read of it"
        row, channels = place
        top_k, total = int(self.weights.shape[1]), None
        vectors = Vectors.dividing(int(self.outputs.shape[1]))
        for k in range(top_k):
            weight = vectors.splat(bind(self.weights[row, k]))
            term = weight * self.outputs[row * top_k + k, channels]
            total = term if total is None else total + term
        assert total is not None, "a position has experts"
        return total
