"""Padding among the rows of pictures, and a chunk without it.

The stock client gives every picture the same number of rows and counts them as tokens. The rows
beyond a picture's own blocks are *padding*, marked by `PADDING` in their first column: no key is
made of them, and what comes after takes their place, so that positions are transformers' own.

The client's count is the KV state's; how many rows of it are padding is known on the device alone.
One more slot of the state's layout keeps it: row p has the number of padding rows among the tokens
up to p, so that tokens which are taken back and checkpoints need nothing of their own.

In a chunk the rows that are kept move to its end. The places before them get copies of the first
one, at the same position: they write the same key and value to the same row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator, symbolic_rows
from gemma4_compile.operators.examples import Sizes, kv_positions, rotary_table
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.packing import word
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.spreads import Spread, around_zero, from_to_twice, near
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    LocalVar,
    bind,
    function,
    i32,
    materialize,
    store,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

PADDING = 3e38  # a finite float32 that no embedding comes near; what overflowed is no padding
DIGIT = 1024  # a number is kept as two, which float16 holds
DIGITS = 2
BITS = 18  # of a number of padding rows, which are fewer than a context has positions
MOST_POSITIONS = 1 << BITS

_KNOWN_DIGITS = Spread(7, 0, 1), Spread(2, DIGIT - 4, 1)  # a few rows on, the second is 0 again
_KNOWN_SHIFT = 0x36A69  # of its 18 bits ten are set
_KNOWN_TURNS = Spread(9, 3 << 9, 2.0**-11), around_zero(0.5)  # lengths of about 1, as turns have


def padding_before(padding: Buffer, position: Expr) -> Expr:
    """Padding rows among the client's tokens before one; none before the first."""
    row = tirx.max(position - 1, i32(0))
    high, low = (padding[row, 0, digit].astype("int32") for digit in range(DIGITS))
    return tirx.Select(position > 0, high * DIGIT + low, i32(0))


def store_padding(padding: Buffer, count: Expr, row: Expr) -> None:
    """Keep the number of padding rows up to a token."""
    dtype = str(padding.dtype)
    store(padding, tirx.floordiv(count, DIGIT).astype(dtype), row, 0, 0)
    store(padding, tirx.floormod(count, DIGIT).astype(dtype), row, 0, 1)


def store_positions(positions: Buffer, first: Expr, count: Expr) -> None:
    """Store what the KV state gives to a call, of the rows that are kept."""
    for index, value in enumerate((first, count, first + count, i32(0))):
        store(positions, value, index)


@dataclass(frozen=True)
class KeptOperands:
    """Arguments of `KeptRows`."""

    rows: Index
    embeddings: Buffer
    positions: Buffer
    padding: Buffer
    source: Buffer
    kept_positions: Buffer
    copies: Buffer


@dataclass(frozen=True)
class KeptRows(Operator):
    """The rows of a chunk without padding, and their positions.

    Arguments: embeddings (rows, width) f32, padding rows with `PADDING` in the first column;
    positions (4,) int32, the client's; padding (capacity, 1, 2) cache_dtype, in place. Results:
    source (rows,) int32, the row of the chunk at each place; kept_positions (4,) int32, of the rows
    that are kept; copies (1,) int32, the places before them.
    """

    kind: ClassVar[str] = "kept_rows"
    rows: Rows
    width: int
    cache_dtype: str

    @staticmethod
    def is_kept(embeddings: Buffer, row: Index) -> Expr:
        """Return whether a row is no padding."""
        return tirx.NE(embeddings[row, 0], f32(PADDING))

    def declare(self, build: FunctionBuilder) -> KeptOperands:
        """The arguments of definition and kernel."""
        rows, capacity = self.rows.extent(), symbolic_rows(None, "capacity")
        return KeptOperands(
            rows=rows,
            embeddings=build.arg("embeddings", (rows, self.width), "float32"),
            positions=build.arg("positions", (4,), "int32"),
            padding=build.arg("padding", (capacity, 1, DIGITS), self.cache_dtype),
            source=build.arg("source", (rows,), "int32"),
            kept_positions=build.arg("kept_positions", (4,), "int32"),
            copies=build.arg("copies", (1,), "int32"),
        )

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "positions":
            return kv_positions(self.rows, sizes)
        if name == "padding":
            return np.broadcast_to(np.array([1, 7]), shape)
        if name != "embeddings":
            return None
        embeddings = rng.normal(size=shape)
        if shape[0] > 1:
            embeddings[shape[0] // 3 : shape[0] // 2, 0] = PADDING
            embeddings[0, 0] = PADDING
        return embeddings

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        if name == "embeddings":  # padding, and what comes nearest to it
            return (near(PADDING),)
        if name == "padding":
            return _KNOWN_DIGITS
        return super().known_spreads(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return kv_positions(self.rows, sizes) if name == "positions" else None

    def tolerance(self, result: str) -> float:
        return 0.0  # they are numbers of rows

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            args = self.declare(build)
            rows, embeddings, positions = args.rows, args.embeddings, args.positions
            padding, source = args.padding, args.source
            before = bind(padding_before(padding, positions[0]))
            kept, first = LocalVar("int32", i32(0)), LocalVar("int32", i32(0))
            with T.serial(0, rows) as i:
                is_kept = bind(self.is_kept(embeddings, i))
                first.set(tirx.Select(is_kept & (kept.value == 0), i32(i), first.value))
                kept.set(kept.value + tirx.Select(is_kept, i32(1), i32(0)))
                store_padding(padding, before + i32(i) + 1 - kept.value, positions[0] + i32(i))
            missing = bind(i32(rows) - kept.value)
            place = LocalVar("int32", missing)
            with T.serial(0, rows) as i, T.If(i32(i) < missing), T.Then():
                store(source, first.value, i)
            with T.serial(0, rows) as i, T.If(self.is_kept(embeddings, i)), T.Then():
                store(source, i32(i), place.value)
                place.set(place.value + 1)
            store_positions(args.kept_positions, positions[0] - before, kept.value)
            store(args.copies, missing, 0)
        return build.result


def rounding_of_angle(position: Expr, frequency: Expr) -> Expr:
    """The exact product of a position and a frequency, less the float32 that is nearest to it.

    In integers: a compiler may change how a difference of floats is rounded.
    """
    position = materialize(tirx.max(position, i32(1)))  # neither 0 nor 1 leaves anything
    bits = materialize(tirx.reinterpret("uint32", frequency), "uint32")
    angle = position.astype("float32") * frequency
    rounded = materialize(tirx.reinterpret("uint32", angle), "uint32")
    product = position.astype("uint32") * _significand(bits)  # modulo 2^32, as all that follows
    more = tirx.shift_right(rounded, word(23)) - tirx.shift_right(bits, word(23))
    rest = product - tirx.shift_left(_significand(rounded), more)
    last_bit = tirx.bitwise_and(bits, word(0x7F800000)) - word(23 << 23)
    return tirx.reinterpret("int32", rest).astype("float32") * tirx.reinterpret("float32", last_bit)


def _significand(bits: Expr) -> Expr:
    """The 24 bits of a float32."""
    return tirx.bitwise_or(tirx.bitwise_and(bits, word(0x7FFFFF)), word(1 << 23))


@dataclass(frozen=True)
class ShiftedOperands:
    """Arguments of `ShiftedRotary`."""

    rows: Index
    rotary: Buffer
    positions: Buffer
    kept_positions: Buffer
    shifts: Buffer
    frequencies: Buffer
    out: Buffer


@dataclass(frozen=True)
class ShiftedRotary(Operator):
    """Cosines and sines of positions that are fewer by the padding rows before them.

    Arguments: rotary (chunk, pairs, 2) f32, of the client's positions; positions and kept_positions
    (4,) int32; shifts (BITS, pairs, 2) f32, cosine and sine of each pair's angle after 2^bit
    positions; frequencies (pairs,) f32. Result: (rows, pairs, 2) f32. Without padding the numbers
    are the same ones.

    transformers rounds the product of position and frequency to float32, which moves an angle by up
    to 4e-3 at position 100,000. Here it is the client's product that was rounded: the difference of
    the two roundings is one more turn.
    """

    kind: ClassVar[str] = "shifted_rotary"
    rows: Rows
    pairs: int

    def declare(self, build: FunctionBuilder) -> ShiftedOperands:
        """The arguments of definition and kernel."""
        rows, pairs = self.rows.extent(), self.pairs
        return ShiftedOperands(
            rows=rows,
            rotary=build.arg("rotary", (tirx.Var("chunk", "int64"), pairs, 2), "float32"),
            positions=build.arg("positions", (4,), "int32"),
            kept_positions=build.arg("kept_positions", (4,), "int32"),
            shifts=build.arg("shifts", (BITS, pairs, 2), "float32"),
            frequencies=build.arg("frequencies", (pairs,), "float32"),
            out=build.arg("out", (rows, pairs, 2), "float32"),
        )

    def turn_back(self, args: ShiftedOperands, row: Index, pair: Index) -> None:
        """Store cosine and sine of the angle that a row has without the padding before it."""
        position, kept = materialize(args.positions[0]), materialize(args.kept_positions[0])
        cos = LocalVar("float32", args.rotary[row, pair, 0])
        sin = LocalVar("float32", args.rotary[row, pair, 1])
        with T.serial(0, BITS) as bit:
            is_set = tirx.bitwise_and(tirx.shift_right(position - kept, i32(bit)), i32(1)) > 0
            with T.If(is_set), T.Then():
                c, s = bind(args.shifts[bit, pair, 0]), bind(args.shifts[bit, pair, 1])
                turned = bind(cos.value * c + sin.value * s)
                sin.set(sin.value * c - cos.value * s)
                cos.set(turned)
        frequency = materialize(args.frequencies[pair], "float32")
        rounding = rounding_of_angle(position + i32(row), frequency)
        angle = materialize(rounding - rounding_of_angle(kept + i32(row), frequency), "float32")
        c, s = bind(1 - angle * angle / 2), bind(angle * (1 - angle * angle / 6))
        store(args.out, cos.value * c - sin.value * s, row, pair, 0)
        store(args.out, sin.value * c + cos.value * s, row, pair, 1)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name in ("rotary", "shifts"):
            return rotary_table(shape, rng)
        if name == "frequencies":
            return 10000.0 ** -rng.random(shape)
        if not name.endswith("positions"):
            return None
        first, count, *_ = kv_positions(self.rows, sizes)
        first -= 5 * (name == "kept_positions")
        return np.array([first, count, first + count, 0])

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        if name == "frequencies":
            return (from_to_twice(0.5),)
        return _KNOWN_TURNS if name == "shifts" else super().known_spreads(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        if not name.endswith("positions"):
            return None
        first, count, *_ = kv_positions(self.rows, sizes)
        first += _KNOWN_SHIFT * (name == "positions")
        return np.array([first, count, first + count, 0])

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            args = self.declare(build)
            with T.serial(0, args.rows) as i, T.serial(0, self.pairs) as pair:
                self.turn_back(args, i, pair)
        return build.result
