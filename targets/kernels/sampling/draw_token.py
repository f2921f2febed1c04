"""The last of a draw's launches: the threshold, and the token at which the draw falls.

Definition: `DrawTopP.definition` in gemma4_compile/operators/draws.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.draws import (
    BIN_SHIFT,
    BINS,
    DIGIT_BITS,
    DIGITS,
    LISTED,
    SEGMENT,
    DrawTopP,
    fraction_of,
    i64,
    in_units,
    mass_of,
    scaled,
)
from gemma4_compile.operators.sampling import bits_of
from gemma4_compile.operators.tir import LocalVar, OneRow, bind, function, i32, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    power_of_two_at_most,
    shared,
    strided,
)
from gemma4_compile.targets.kernels.sampling.draws import neighbours, ramp
from gemma4_compile.targets.kernels.sampling.warp_sums import count_shared, running_sum
from gemma4_compile.targets.spec import TargetSpec

AT_ONCE = 8  # loads of a thread under way
UNIFORM_BITS = 30


@dataclass(frozen=True)
class _Threshold:
    """The set's smallest probability.

    Attributes
    ----------
    bits : its bits
    mass : its mass, at least 1
    above : mass of those above it
    ties : how many have it
    """

    bits: Expr
    mass: Expr
    above: Expr
    ties: Expr


def make_draw_top_p(operator: DrawTopP, spec: TargetSpec) -> tirx.PrimFunc:
    """One block for a row: its threads share the segments' lists, and then a segment.

    Grid: 1 x rows. Shared: a count and a sum for each digit. Reference: `DrawTopP.definition`.
    """
    vocab, n, segments = operator.vocab, operator.rows.extent(), operator.bin.segments
    threads = power_of_two_at_most(min(SEGMENT, spec.max_threads_per_block))
    per_segment = threads // (2 * power_of_two_at_most(segments - 1) if segments > 1 else 1)
    assert per_segment, "a thread for each segment"
    with function(scheduled=True) as build:
        probs = build.arg("probs", (n, vocab), "float32")
        build.arg("masses", (n, BINS), "int64")
        build.arg("top_p", (1,), "float32")
        found, above, counts, listed = (
            build.arg(name, *result)
            for name, result in zip(LISTED, operator.bin.results_of(n), strict=True)
        )
        uniform = build.arg("uniform", (n,), "float32")
        token = build.arg("token", (n,), "int32")
        with launch(threads, 1, n) as (_, i, thread):
            block = Block(thread, threads, spec.simd_width)
            segment = bind(tirx.floordiv(thread, per_segment))
            part = bind(tirx.floormod(thread, per_segment))
            exists = segment < segments
            at = bind(tirx.min(segment, i32(segments - 1)))
            count = LocalVar("int32", tirx.Select(exists, counts[i, at], i32(0)))
            mass = LocalVar("int64", tirx.Select(exists & (part == 0), above[i, at], i64(0)))
            wanted, bin_of, base = (LocalVar("int64", found[i, item]) for item in range(3))
            tokens = _Listed(OneRow(listed, i), at, part, per_segment, count.value)
            threshold = _find(block, tokens, wanted.value, bin_of.value, base.value)
            missing = tirx.max(wanted.value - threshold.above, i64(0))
            needed = tirx.truncdiv(missing + threshold.mass - i64(1), threshold.mass)
            needed = tirx.min(tirx.max(needed, i64(1)), i64(threshold.ties))
            walk = _Walk(block, threshold, needed)

            tied = LocalVar("int32", i32(0))

            def note(bits: Expr) -> None:
                with when(bits > threshold.bits):
                    mass.add(mass_of(bits))
                with when(bits == threshold.bits):
                    tied.add(i32(1))

            tokens.each(note)
            chosen = _segment(walk, mass.value, tied.value, segment, part, uniform[i])
            per_thread = SEGMENT // threads
            first = bind(chosen * SEGMENT + thread * per_thread)
            row = OneRow(probs, i)
            own = neighbours(vocab, first, per_thread, lambda v, width: row[ramp(v, width)])
            drawn = _token(walk, own, first, vocab)
            with when(drawn >= 0):
                store(token, drawn, i)
            with when(tirx.all(thread == 0, walk.whole.value == 0)):
                store(token, i32(0), i)
    return build.result


class _Listed:
    """The probabilities in the threshold's bin, of which a thread takes some of one segment's."""

    def __init__(
        self, listed: OneRow, segment: Expr, part: Expr, per_segment: int, count: Expr
    ) -> None:
        self._listed, self._segment, self._part = listed, segment, part
        self._per_segment, self._count = per_segment, count

    def each(self, body: Callable[[Expr], None]) -> None:
        """`body` for the bits of each of the thread's."""
        at_once = self._per_segment * AT_ONCE
        steps = tirx.floordiv(self._count + (at_once - 1), at_once)
        with T.serial(0, bind(steps)) as step:
            places = [
                bind(i32(step) * at_once + number * self._per_segment + self._part)
                for number in range(AT_ONCE)
            ]
            cells = [
                LocalVar("float32", self._listed[self._segment, tirx.min(place, i32(SEGMENT - 1))])
                for place in places
            ]
            for place, cell in zip(places, cells, strict=True):
                with when(place < self._count):
                    body(bind(bits_of(cell.value)))


def _find(block: Block, tokens: _Listed, wanted: Expr, bin_of: Expr, base: Expr) -> _Threshold:
    """Find the second digit and the last one."""
    counts, lows = (shared((DIGITS,), "int32") for _ in range(2))
    last = shared((DIGITS,), "int32")
    for memory in (counts, lows, last):
        with strided(block, DIGITS) as digit:
            store(memory, i32(0), digit)
    barrier()

    def digit_of(bits: Expr, shift: int) -> Expr:
        return bind(tirx.bitwise_and(tirx.shift_right(bits, i32(shift)), i32(DIGITS - 1)))

    def count(bits: Expr) -> None:
        digit = digit_of(bits, DIGIT_BITS)
        count_shared(counts, digit, i32(1))
        count_shared(lows, digit, digit_of(bits, 0))

    tokens.each(count)
    barrier()
    begin = bind(tirx.shift_left(bin_of.astype("int32"), i32(BIN_SHIFT)))

    def mass_of_digit(digit: Expr) -> Expr:
        bits = bind(begin + tirx.shift_left(digit, i32(DIGIT_BITS)))
        return scaled(i64(counts[digit]) * fraction_of(bits) + i64(lows[digit]), bits)

    second = _Digit(block, mass_of_digit, wanted, base)
    start = bind(begin + tirx.shift_left(second.digit, i32(DIGIT_BITS)))

    def count_last(bits: Expr) -> None:
        with when(digit_of(bits, DIGIT_BITS) == second.digit):
            count_shared(last, digit_of(bits, 0), i32(1))

    tokens.each(count_last)
    barrier()

    def mass_of_last(digit: Expr) -> Expr:
        bits = bind(start + digit)
        return scaled(i64(last[digit]) * fraction_of(bits), bits)

    third = _Digit(block, mass_of_last, wanted, second.above)
    bits = LocalVar("int32", start + third.digit)
    mass = LocalVar("int64", tirx.max(mass_of(bits.value), i64(1)))
    ties = LocalVar("int32", last[third.digit])
    return _Threshold(bits.value, mass.value, third.above, ties.value)


class _Digit:
    """The highest digit whose mass, with that of all above, reaches what is wanted; else 0."""

    def __init__(
        self, block: Block, mass_of_digit: Callable[[Expr], Expr], wanted: Expr, base: Expr
    ) -> None:
        thread, per_thread = block.thread, DIGITS // block.threads
        digit_of, mass_above = shared((1,), "int32"), shared((1,), "int64")
        digits = [bind(i32(DIGITS - 1) - (thread * per_thread + k)) for k in range(per_thread)]
        parts = [LocalVar("int64", mass_of_digit(digit)) for digit in digits]
        total = LocalVar("int64", i64(0))
        for part in parts:
            total.add(part.value)
        sums = running_sum(block, total.value, "int64")
        reached = LocalVar("int64", base + sums.before)
        for digit, part in zip(digits, parts, strict=True):
            after = bind(reached.value + part.value)
            is_last = digit == 0
            with when(tirx.all(reached.value < wanted, tirx.any(after >= wanted, is_last))):
                store(digit_of, digit, 0)
                store(mass_above, reached.value, 0)
            reached.add(part.value)
        barrier()
        self.digit = LocalVar("int32", digit_of[0]).value
        self.above = LocalVar("int64", mass_above[0]).value


class _Walk:
    """How far the sum over the set, by ascending ids, has come."""

    def __init__(self, block: Block, threshold: _Threshold, needed: Expr) -> None:
        self.block, self.threshold = block, threshold
        self.needed = LocalVar("int64", needed)
        self.drawn, self.whole = LocalVar("int64", i64(0)), LocalVar("int64", i64(0))
        self.before, self.ties_before = shared((1,), "int64"), shared((1,), "int32")
        self.chosen = shared((1,), "int32")

    def sum(self, mass: Expr, ties: Expr) -> Expr:
        """The set's mass among tokens of which so many have the threshold."""
        return mass + self.threshold.mass * tirx.min(self.needed.value, i64(ties))


def _segment(walk: _Walk, mass: Expr, ties: Expr, segment: Expr, part: Expr, uniform: Expr) -> Expr:
    """The segment in which the draw falls; the walk stands before it."""
    with when(walk.block.thread == 0):
        store(walk.chosen, i32(0), 0)
        store(walk.before, i64(0), 0)
        store(walk.ties_before, i32(0), 0)
    masses = running_sum(walk.block, mass, "int64")
    tied = running_sum(walk.block, ties, "int32")
    walk.whole.set(walk.sum(masses.whole, tied.whole))
    share = in_units(uniform, UNIFORM_BITS)
    drawn = tirx.shift_right(walk.whole.value, i64(UNIFORM_BITS)) * share
    walk.drawn.set(tirx.min(drawn, walk.whole.value - i64(1)))
    begins = walk.sum(masses.before, tied.before) <= walk.drawn.value
    ends = walk.sum(masses.through, tied.through) > walk.drawn.value
    with when(tirx.all(begins, ends)):
        store(walk.chosen, segment, 0)
    barrier()
    chosen = LocalVar("int32", walk.chosen[0])
    with when(tirx.all(segment == chosen.value, part == 0)):
        store(walk.before, masses.before, 0)
        store(walk.ties_before, tied.before, 0)
    barrier()
    return chosen.value


def _token(walk: _Walk, own: Sequence[LocalVar], first: Expr, vocab: int) -> Expr:
    """The token of this thread at which the draw falls, or -1."""
    threshold = walk.threshold
    all_bits = [bind(bits_of(cell.value)) for cell in own]
    exist = [first + number < vocab for number in range(len(own))]
    mass, ties = LocalVar("int64", i64(0)), LocalVar("int32", i32(0))
    for bits, exists in zip(all_bits, exist, strict=True):
        with when(tirx.all(exists, bits > threshold.bits)):
            mass.add(mass_of(bits))
        with when(tirx.all(exists, bits == threshold.bits)):
            ties.add(i32(1))
    masses = running_sum(walk.block, mass.value, "int64")
    tied = running_sum(walk.block, ties.value, "int32")
    passed = LocalVar("int64", walk.before[0] + masses.before)
    seen = LocalVar("int32", walk.ties_before[0] + tied.before)
    drawn, sum_before = LocalVar("int32", i32(-1)), LocalVar("int64", i64(0))
    for number, (bits, exists) in enumerate(zip(all_bits, exist, strict=True)):
        sum_before.set(walk.sum(passed.value, seen.value))
        with when(tirx.all(exists, bits > threshold.bits)):
            passed.add(mass_of(bits))
        with when(tirx.all(exists, bits == threshold.bits)):
            seen.add(i32(1))
        through = walk.sum(passed.value, seen.value)
        falls = tirx.all(sum_before.value <= walk.drawn.value, through > walk.drawn.value)
        with when(falls):
            drawn.set(first + number)
    return drawn.value
