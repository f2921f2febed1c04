"""Draws from the top-p set by exact masses: a launch each for maxima, masses, the bin, the token.

A probability is a float32 of at most 1. Its mass is an integer, the multiples of 2**-60 in it: sums
of masses have no rounding, so that blocks may add theirs in any order, and the token is that of
`SampleTopP.definition` but for where that one's sums round.

The threshold of the top-p set is found digit by digit. The first digit of a probability's bits is
its bin; the tokens of the threshold's bin, which are few, are listed, and one block finds the other
digits in the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator, TensorSpec
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import CHUNK, Rows
from gemma4_compile.operators.sampling import (
    SampleTopP,
    SoftmaxPartials,
    VocabularyOperator,
    bits_of,
    merged_partials,
    weight_of,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

MASS_BITS = 60  # a mass of 1.0 is 2**60
DIGIT_BITS = 10  # of each digit after the first
DIGITS = 2**DIGIT_BITS
BIN_SHIFT = 2 * DIGIT_BITS
BINS = 1024  # 1.0 lies in number 1016
SEGMENT = 2048  # neighbouring tokens of a block
FOUND = ("wanted", "bin", "above")
"""What is known once the threshold's bin is: the mass of the top-p set, the bin, the mass above."""
LISTED = ("found", "above", "counts", "listed")  # what `TopPBin` gives, by name
_IN_BIN = 2**BIN_SHIFT - 1  # bits of a probability within its bin
_NEAR = 2**10  # from its ends, of which roundings of an exponential of up to 80 take 2**8
_ASIDE = 0.03  # of a probability, where a bin is 0.06 to 0.125 wide
_FRACTION_BITS, _BIAS = 23, 150  # of a float32: its value is its fraction by 2**(exponent - 150)


def i64(value: Index) -> Expr:
    """`value` as an int64 expression."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def fraction_of(bits: Expr) -> Expr:
    """A probability's fraction with the bit that float32 leaves out, int64."""
    hidden = tirx.Select(bits >= i32(1 << _FRACTION_BITS), i32(1 << _FRACTION_BITS), i32(0))
    return i64(tirx.bitwise_and(bits, i32((1 << _FRACTION_BITS) - 1)) + hidden)


def scaled(fractions: Expr, bits: Expr) -> Expr:
    """The mass of a sum of fractions, int64, of probabilities with the exponent of `bits`."""
    exponent = tirx.max(tirx.shift_right(bits, i32(_FRACTION_BITS)), i32(1))
    shift = bind(exponent - i32(_BIAS - MASS_BITS))
    up, down = (i64(tirx.max(tirx.min(one, i32(62)), i32(0))) for one in (shift, i32(0) - shift))
    return tirx.shift_right(tirx.shift_left(fractions, up), down)


def mass_of(bits: Expr) -> Expr:
    """The mass of a probability, int64, from its bits."""
    return scaled(fraction_of(bits), bits)


def as_mass(share: Expr) -> Expr:
    """A float32 of 0 to 1 as a mass."""
    return in_units(share, MASS_BITS)


def in_units(share: Expr, bits: int) -> Expr:
    """A float32 of 0 to 1 in units of 2**-bits, int64.

    By factors that TVM's text for Metal has all digits of: it rounds constants to seven.
    """
    while bits:
        step = min(bits, 15)
        share, bits = bind(share * f32(2.0**step)), bits - step
    return share.astype("int64")


def divisor_of(whole: Expr) -> Expr:
    """What weights are divided by: 1 where a row has none, as one of NaN, for 0 / 0 has no bin."""
    return tirx.Select(whole > f32(0.0), whole, f32(1.0))


@dataclass(frozen=True)
class DrawPartials(SoftmaxPartials):
    """As `SoftmaxPartials`, and masses of bins that begin with 0.

    Arguments: logits (1, rows, vocab) f32; temperature (1,) f32. Results: (rows, blocks, 2) f32;
    masses (rows, BINS) int64.
    """

    kind: ClassVar[str] = "draw_partials"

    def results_of(self, rows: Index) -> list[TensorSpec]:
        """Shapes and dtypes of the results of so many rows."""
        return [((rows, self.blocks, 2), "float32"), ((rows, BINS), "int64")]

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, n, self.vocab), "float32")
            temperature = build.arg("temperature", (1,), "float32")
            partials = build.arg("partials", (n, self.blocks, 2), "float32")
            masses = build.arg("masses", (n, BINS), "int64")
            self.define_partials(n, logits, temperature, partials)
            with T.serial(0, n) as i, T.serial(0, BINS) as index:
                store(masses, i64(0), i, index)
        return build.result


@dataclass(frozen=True)
class DrawProbs(VocabularyOperator):
    """Probabilities, and the mass of those in each bin.

    Arguments: logits (1, rows, vocab) f32; temperature (1,) f32; partials (rows, blocks, 2) f32;
    masses (rows, BINS) int64, in place: each block adds its tokens'. Result: probabilities
    (rows, vocab) f32.
    """

    kind: ClassVar[str] = "draw_probs"
    blocks: int
    rows: Rows = CHUNK

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        """No probability is near the end of its bin: rounding would move all of its mass."""
        args = super().example_inputs(rng, sizes)
        logits, temperature, partials = (np.asarray(arg) for arg in args[:3])
        highest = partials[..., 0].max(axis=-1, keepdims=True)
        weights = np.exp((partials[..., 0].astype(np.float64) - highest) / temperature)
        whole = (partials[..., 1] * weights).sum(axis=-1, keepdims=True)
        probs = np.exp((logits[0].astype(np.float64) - highest) / temperature) / whole
        far = np.abs((probs.astype(np.float32).view(np.int32) & _IN_BIN) - _IN_BIN // 2)
        logits[0][far > _IN_BIN // 2 - _NEAR] += temperature[0] * np.float32(_ASIDE)
        return args

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            logits = build.arg("logits", (1, n, self.vocab), "float32")
            temperature = build.arg("temperature", (1,), "float32")
            partials = build.arg("partials", (n, self.blocks, 2), "float32")
            masses = build.arg("masses", (n, BINS), "int64")
            probs = build.arg("probs", (n, self.vocab), "float32")
            with T.serial(0, n) as i:
                highest, total = merged_partials(self.blocks, partials, i, temperature)
                total.set(divisor_of(total.value))
                with T.serial(0, self.vocab) as v:
                    weight = weight_of(logits[0, i, v], highest.value, temperature[0])
                    store(probs, weight / total.value, i, v)
                    bits = bind(bits_of(probs[i, v]))
                    index = bind(tirx.shift_right(bits, i32(BIN_SHIFT)))
                    store(masses, masses[i, index] + mass_of(bits), i, index)
        return build.result


@dataclass(frozen=True)
class TopPBin(VocabularyOperator):
    """Find the threshold's bin, list its tokens, and sum up those above.

    The bin is the highest whose mass, with that of all above, reaches `top_p` or the whole.
    Arguments: probs (rows, vocab) f32; masses (rows, BINS) int64; top_p (1,) f32. Results: FOUND
    (rows, 3) int64; of each segment the mass of its tokens above the bin (rows, segments) int64,
    how many lie in the bin (rows, segments) int32, and their probabilities by ascending ids
    (rows, segments, SEGMENT) f32, after which nothing is written.
    """

    kind: ClassVar[str] = "top_p_bin"
    rows: Rows = CHUNK

    @property
    def segments(self) -> int:
        """Segments of the vocabulary; the last may be shorter."""
        return -(-self.vocab // SEGMENT)

    def results_of(self, rows: Index) -> list[TensorSpec]:
        """Shapes and dtypes of the results of so many rows."""
        return [
            ((rows, len(FOUND)), "int64"),
            ((rows, self.segments), "int64"),
            ((rows, self.segments), "int32"),
            ((rows, self.segments, SEGMENT), "float32"),
        ]

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        return _with_masses(super().example_inputs(rng, sizes))

    def tolerance(self, result: str) -> float:
        del result
        return 0.0  # sums of integers, and what is copied

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            probs = build.arg("probs", (n, self.vocab), "float32")
            masses = build.arg("masses", (n, BINS), "int64")
            top_p = build.arg("top_p", (1,), "float32")
            found, above, counts, listed = (
                build.arg(name, *spec)
                for name, spec in zip(LISTED, self.results_of(n), strict=True)
            )
            with T.serial(0, n) as i:
                whole, reached = LocalVar("int64", i64(0)), LocalVar("int64", i64(0))
                with T.serial(0, BINS) as index:
                    whole.add(masses[i, index])
                wanted = LocalVar("int64", tirx.min(as_mass(top_p[0]), whole.value))
                wanted.set(tirx.max(wanted.value, i64(1)))
                store(found, wanted.value, i, 0)
                store(found, i64(0), i, 1)
                store(found, i64(0), i, 2)
                with T.serial(0, BINS) as step:
                    index = bind(i32(BINS - 1) - i32(step))
                    before = bind(reached.value)
                    reached.add(masses[i, index])
                    crosses = tirx.all(before < wanted.value, reached.value >= wanted.value)
                    with when(crosses):
                        store(found, i64(index), i, 1)
                        store(found, reached.value - masses[i, index], i, 2)
                with T.serial(0, self.segments) as segment:
                    self._list(probs, found, above, counts, listed, i, segment)
        return build.result

    def _list(
        self,
        probs: Buffer,
        found: Buffer,
        above: Buffer,
        counts: Buffer,
        listed: Buffer,
        i: Expr,
        segment: Expr,
    ) -> None:
        """What is noted of one segment."""
        mass, count = LocalVar("int64", i64(0)), LocalVar("int32", i32(0))
        end = bind(tirx.min((segment + 1) * SEGMENT, self.vocab))
        with T.serial(segment * SEGMENT, end) as v:
            bits = bind(bits_of(probs[i, v]))
            index = bind(i64(tirx.shift_right(bits, i32(BIN_SHIFT))))
            with when(index > found[i, 1]):
                mass.add(mass_of(bits))
            with when(index == found[i, 1]):
                store(listed, probs[i, v], i, segment, count.value)
                count.add(i32(1))
        store(above, mass.value, i, segment)
        store(counts, count.value, i, segment)


@dataclass(frozen=True)
class DrawTopP(SampleTopP):
    """As `SampleTopP`, from what `TopPBin` found.

    Arguments: those of `TopPBin`, of which the definition reads probs and top_p; its results;
    uniform (rows,) f32 in [0, 1). Result: token (rows,) int32.
    """

    kind: ClassVar[str] = "draw_top_p"
    rows: Rows = CHUNK

    @property
    def bin(self) -> TopPBin:
        """The operator that finds what this one takes."""
        return TopPBin(self.vocab, self.rows)

    @property
    def maker(self) -> Operator:
        return self.bin

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        return _with_masses(super().example_inputs(rng, sizes))

    def definition(self) -> tirx.PrimFunc:
        n = self.rows.extent()
        with function(scheduled=False) as build:
            probs = build.arg("probs", (n, self.vocab), "float32")
            build.arg("masses", (n, BINS), "int64")
            top_p = build.arg("top_p", (1,), "float32")
            for name, (shape, dtype) in zip(LISTED, self.bin.results_of(n), strict=True):
                build.arg(name, shape, dtype)
            uniform = build.arg("uniform", (n,), "float32")
            token = build.arg("token", (n,), "int32")
            with T.serial(0, n) as i:
                store(token, self.draw(probs, i, uniform[i], top_p[0]), i)
        return build.result


def _with_masses(args: tuple[Array | int, ...]) -> tuple[Array | int, ...]:
    """Arguments whose second are the masses of the first, which are probabilities."""
    probs, masses = (np.asarray(arg) for arg in args[:2])
    masses[...] = 0
    for row, own in zip(masses, probs, strict=True):
        parts = (own.astype(np.float64) * 2.0**MASS_BITS).astype(np.int64)
        np.add.at(row, own.view(np.int32) >> BIN_SHIFT, parts)
    return args
