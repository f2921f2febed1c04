"""What a lane of a matmul has of a row: every so-manieth part, and the words of weights of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.tir import bind, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.vectors import Vectors


@dataclass(frozen=True)
class LaneParts:
    """A lane's parts of a row.

    Attributes
    ----------
    numbers : of the parts, some of which may be beyond the row's end
    inside : the same, with the last part in the place of those
    is_ragged : whether there are any beyond the end
    """

    numbers: Sequence[Expr]
    inside: Sequence[Expr]
    is_ragged: bool

    @classmethod
    def of(cls, count: int, lanes: int, lane: Expr) -> LaneParts:
        """Every part whose number is a lane's, modulo the lanes, of so many."""
        numbers = [lane + iteration * lanes for iteration in range(-(-count // lanes))]
        is_ragged = len(numbers) * lanes > count
        last = count - 1
        inside = [bind(tirx.min(number, last) if is_ragged else number) for number in numbers]
        return cls(numbers, inside, is_ragged)


class WordsAhead:
    """A lane's words of one row of weights, which are read ahead of their use.

    Parameters
    ----------
    parts : their numbers
    size : words of each
    vectors : in which they are read
    """

    def __init__(self, parts: Sequence[Expr], size: int, vectors: Vectors) -> None:
        self._parts, self._size, self._vectors = parts, size, vectors
        self._words = local((len(parts) * size,), "uint32")

    def load(self, matrix: Buffer, row: Expr, index: int) -> None:
        """Read the words of one of the parts."""
        vectors, size = self._vectors, self._size
        for at in range(0, size, vectors.size):
            read = matrix[row, vectors.from_channel(self._parts[index] * size + at)]
            store(self._words, read, vectors.from_channel(index * size + at))

    def take(self) -> list[list[Expr]]:
        """The words of each part, out of the way of the next row."""
        vectors, size, words = self._vectors, self._size, []
        for index in range(len(self._parts)):
            taken = [
                bind(self._words[vectors.from_channel(index * size + at)])
                for at in range(0, size, vectors.size)
            ]
            words.append([lane for vector in taken for lane in vectors.lanes(vector)])
        return words
