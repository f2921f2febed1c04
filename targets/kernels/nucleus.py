"""Draw a token from the nucleus without sorting.

One launch surveys groups of tokens; one thread block then searches on the bits of the
probabilities, and passes over every group that lies below what it looks for.

Plain forms: `NucleusSurvey.plain` and `SampleTopP.plain` in model_spec/operators/sampling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.sampling import (
    BINS,
    GROUP,
    SURVEY_RUN,
    NucleusSurvey,
    SampleTopP,
    bin_bits,
)
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    REDUCTION_COLUMNS,
    BlockReduction,
    LaneSums,
    barrier,
    launch,
    power_of_two_at_most,
    shared,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

BITS_PER_PASS = 3  # one pass settles so many, with 2**3 - 1 sums a thread
PASSES = 10  # of the first bin, whose bits lie below 2**30; other bins need seven of them
VECTOR = 4  # tokens read together; a vocabulary is padded to a multiple of 32
LOADS = GROUP // VECTOR  # vectors of a group, all under way at once
PARTS = 4  # loads of other kinds that a thread has under way
Body = Callable[[Any, Any], None]  # of a probability and its bits


def _lanes(quad: Any, body: Body) -> None:
    """`body` for the four tokens of a vector."""
    for lane in range(VECTOR):
        p = let(tirx.Shuffle([quad], [lane]))
        body(p, let(tirx.reinterpret("int32", p)))


def make_nucleus_survey(operator: NucleusSurvey, spec: TargetSpec) -> tirx.PrimFunc:
    """Every thread goes over all tokens of the run for a bin of its own.

    Grid: runs. Shared: the run's probabilities, one float32 a thread. Reference:
    `NucleusSurvey.plain`.
    """
    vocab, groups, size = operator.vocab, operator.groups, SURVEY_RUN * GROUP
    threads = min(BINS, power_of_two_at_most(spec.max_threads_per_block))
    with function(scheduled=True) as build:
        probs = build.arg("probs", (1, vocab), "float32")
        maxima = build.arg("maxima", (groups,), "float32")
        masses = build.arg("masses", (operator.runs, BINS), "float32")
        with launch(threads, operator.runs) as (run, _, thread):
            tokens, tops = shared((size,)), shared((threads,))
            share = size // threads  # neighbouring tokens of a thread, all in one group
            highest = Cell("float32", zero())
            for step in range(share // VECTOR):
                within = let(thread * share + step * VECTOR)
                v = let(run * size + within)
                inside = let(tirx.Select(v < vocab, f32(1.0), zero()))
                at = let(tirx.min(v, vocab - VECTOR))
                quad = let(probs[0, T.ramp(at, 1, VECTOR)] * tirx.Broadcast(inside, VECTOR))
                _lanes(quad, lambda p, _: highest.set(tirx.max(highest.value, p)))
                T.buffer_store(tokens, quad, [T.ramp(within, 1, VECTOR)])
            store(tops, highest.value, thread)
            barrier()
            group = let(run * SURVEY_RUN + thread)
            with when((thread < SURVEY_RUN) & (group < groups)):
                top = Cell("float32", zero())
                for other in range(GROUP // share):
                    top.set(tirx.max(top.value, tops[thread * (GROUP // share) + other]))
                store(maxima, top.value, group)
            for first in range(0, BINS, threads):
                begin, mass = let(bin_bits(thread + first)), Cell("float32", zero())

                def count(p: Any, bits: Any, begin: Any = begin, mass: Cell = mass) -> None:
                    mass.add(tirx.Select(bits >= begin, p, zero()))

                with T.serial(0, size // VECTOR) as step:
                    _lanes(let(tokens[T.ramp(step * VECTOR, 1, VECTOR)]), count)
                store(masses, mass.value, run, thread + first)
    return build.result


def make_sample_top_p(operator: SampleTopP, spec: TargetSpec) -> tirx.PrimFunc:
    """One bin holds the threshold; its tokens are put aside and searched bit by bit.

    Grid: 1. Shared: eleven words a lane. Reference: `SampleTopP.plain`.
    """
    vocab, lanes, turns, survey = operator.vocab, operator.lanes, operator.turns, operator.survey
    with function(scheduled=True) as build:
        probs = build.arg("probs", (1, vocab), "float32")
        maxima = build.arg("maxima", (survey.groups,), "float32")
        masses = build.arg("masses", (survey.runs, BINS), "float32")
        uniform = build.arg("uniform", (1,), "float32")
        top_p = build.arg("top_p", (1,), "float32")
        token = build.arg("token", (1,), "int32")
        work = build.arg("work", (operator.work_size,), "float32")
        with launch(lanes, 1) as (_, _, lane):
            found = _Bin(masses, survey.runs, lane, lanes, top_p, spec.simd_width)
            aside = _Aside(work, lane, lanes, found)
            with T.serial(0, turns) as turn:
                group = let(turn * lanes + lane)
                with when(group < survey.groups):
                    highest = let(tirx.reinterpret("int32", maxima[group]))
                    with when(highest >= found.begin):
                        quads = []
                        for load in range(LOADS):
                            v = let(group * GROUP + load * VECTOR)
                            inside = let(tirx.Select(v < vocab, f32(1.0), zero()))
                            at = let(tirx.min(v, vocab - VECTOR))
                            kept = tirx.Broadcast(inside, VECTOR)
                            quads.append(let(probs[0, T.ramp(at, 1, VECTOR)] * kept))
                        for quad in quads:
                            _lanes(quad, aside.put)
            threshold = _threshold(aside, found, lane, lanes, spec.simd_width)
            walk = _Walk(threshold, found.wanted, uniform[0], lanes)
            walk.note(aside.visit, lane, aside.above.value + aside.dropped.value)
            walk.settle_ties()
            walk.scan()
            line = let(walk.chosen.value)
            # The lane's tokens again, a few of them to each thread.
            quads_each = -(-turns * GROUP // (lanes * VECTOR))

            def visit_piece(piece: Any, body: Callable[[Any], None]) -> None:
                with T.serial(0, quads_each) as step:
                    item = let((piece * quads_each + step) * VECTOR)
                    turn, within = tirx.floordiv(item, GROUP), tirx.floormod(item, GROUP)
                    v = let((turn * lanes + line) * GROUP + within)
                    with when((turn < turns) & (v < vocab)):
                        body(v)

            def note_piece(body: Body) -> None:
                visit_piece(lane, lambda v: _lanes(let(probs[0, T.ramp(v, 1, VECTOR)]), body))

            walk.note(note_piece, lane, zero())
            walk.scan()
            piece = let(walk.chosen.value)
            walk.begin()
            visit_piece(piece, lambda v: walk.pass_tokens(probs, v))
            with when(lane == 0):
                store(token, walk.chosen.value, 0)
    return build.result


class _Bin:
    """The bin that holds the threshold: its bits [begin, end), and the mass above it."""

    def __init__(
        self, survey: Any, runs: int, lane: Any, lanes: int, top_p: Any, simd_width: int
    ) -> None:
        totals = shared((BINS + 1,))
        mine = []
        for first in range(0, BINS, lanes):
            index = let(tirx.min(lane + first, BINS - 1))
            parts = [Cell("float32", zero()) for _ in range(PARTS)]
            with T.serial(0, -(-runs // PARTS)) as step:
                for load, part in enumerate(parts):
                    run = let(step * PARTS + load)
                    value = survey[tirx.min(run, runs - 1), index]
                    part.add(tirx.Select(run < runs, value, zero()))
            total = let(sum((part.value for part in parts[1:]), parts[0].value))
            mine.append((index, total))
            store(totals, total, index)
        with when(lane == 0):
            store(totals, zero(), BINS)
        barrier()
        self.wanted = let(tirx.min(top_p[0], totals[0]))
        best = Cell("float32", zero())
        for index, total in mine:
            reaches = (total >= self.wanted) & (total > zero())
            best.set(tirx.max(best.value, tirx.Select(reaches, as_f32(index), zero())))
        reduce = BlockReduction(lane, lanes, simd_width)
        index = let(i32(reduce(best.value, tirx.max)))
        self.begin = let(bin_bits(index))
        self.end = let(tirx.Select(index < BINS - 1, bin_bits(index + 1), i32(2**31 - 1)))
        self.above = let(totals[index + 1])


class _Aside:
    """A lane's tokens of the threshold's bin, in their order, and the mass above the bin.

    What cannot be the threshold any more is left out by and by: `dropped` is the mass of those
    above it.
    """

    def __init__(self, work: Any, lane: Any, lanes: int, found: _Bin) -> None:
        self._work, self._lane, self._lanes, self._found = work, lane, lanes, found
        self._count = Cell("int32", i32(0))
        self.above, self.dropped = Cell("float32", zero()), Cell("float32", zero())

    def put(self, p: Any, bits: Any) -> None:
        """Take a token of the lane."""
        with when(bits >= self._found.begin):
            with when(bits >= self._found.end):
                self.above.add(p)
            with when(bits < self._found.end):
                self._append(p)

    def _append(self, p: Any) -> None:
        store(self._work, p, self._count.value * self._lanes + self._lane)
        self._count.add(i32(1))

    def visit(self, body: Body) -> None:
        """`body` for the tokens that were put aside, and for some of 0 with negative bits."""
        self._first(let(self._count.value), body)

    def sift(self, begin: Any, end: Any, body: Body) -> None:
        """Keep the tokens with bits in [begin, end), and run `body` for them."""
        count = let(self._count.value)
        self._count.set(i32(0))  # from the front again: what is overwritten was read before

        def keep(p: Any, bits: Any) -> None:
            with when(bits >= end):
                self.dropped.add(p)
            with when((bits >= begin) & (bits < end)):
                self._append(p)
                body(p, bits)

        self._first(count, keep)

    def _first(self, count: Any, body: Body) -> None:
        with T.serial(0, tirx.floordiv(count + (PARTS - 1), PARTS)) as step:
            items = [let(step * PARTS + part) for part in range(PARTS)]
            places = [tirx.min(item, count - 1) * self._lanes + self._lane for item in items]
            values = [let(self._work[place]) for place in places]
            for item, value in zip(items, values, strict=True):
                exists = let(item < count)
                bits = tirx.Select(exists, tirx.reinterpret("int32", value), i32(-1))
                body(let(tirx.Select(exists, value, zero())), let(bits))


def _threshold(aside: _Aside, found: _Bin, lane: Any, lanes: int, simd_width: int) -> Any:
    """The bits of the nucleus's smallest probability."""
    threshold, bound = Cell("int32", found.begin), Cell("int32", found.end)
    digits = range(1, 2**BITS_PER_PASS)
    masses = [Cell("float32") for _ in digits]
    sums = LaneSums(len(masses), lane, lanes, lanes, simd_width)
    with T.serial(0, PASSES) as step:
        shift = let(i32((PASSES - 1) * BITS_PER_PASS) - i32(step) * BITS_PER_PASS)
        unit = let(tirx.shift_left(i32(1), shift))
        base, end = let(threshold.value), let(bound.value)
        for mass in masses:
            mass.set(zero())

        def sort_in(p: Any, bits: Any) -> None:
            for digit, mass in zip(digits, masses, strict=True):
                mass.add(tirx.Select(bits >= base + digit * unit, p, zero()))

        with when(end - base > unit):  # else no token of the bin is told from another
            aside.sift(base, end, sort_in)
        barrier()  # the sums of the pass before may still be being read
        dropped = let(aside.dropped.value)
        reached = sums([mass.value + dropped for mass in masses])
        for mass, total in zip(masses, reached, strict=True):
            mass.set(total)
        for digit, mass in zip(digits, masses, strict=True):
            place = let(base + digit * unit)
            reaches = (mass.value + found.above >= found.wanted) & (mass.value > zero())
            with when((place < end) & reaches):
                threshold.set(place)
        bound.set(tirx.min(end, threshold.value + unit))
    return let(threshold.value)


class _Walk:
    """Walks over all lanes, pieces of a lane, tokens of a piece, to where the draw falls.

    Every thread walks alike over what the threads noted in shared memory: first over blocks of
    neighbours, then over the threads of one.
    """

    def __init__(self, threshold: Any, wanted: Any, uniform: Any, lanes: int) -> None:
        self.threshold, self.wanted, self.uniform = threshold, wanted, uniform
        self.blocks = min(lanes, REDUCTION_COLUMNS)
        self.length = lanes // self.blocks
        self.value = let(tirx.reinterpret("float32", threshold))
        self.masses, self.tie_counts = shared((lanes,)), shared((lanes,), "int32")
        self.block_masses = shared((self.blocks,))
        self.block_tie_counts = shared((self.blocks,), "int32")
        self.ties, self.drawn = Cell("int32", i32(0)), Cell("float32", zero())
        self.passed, self.seen = Cell("float32", zero()), Cell("int32", i32(0))
        self.chosen, self.done = Cell("int32", i32(0)), Cell("int32", i32(0))
        self._base, self._base_seen = Cell("float32", zero()), Cell("int32", i32(0))

    def note(self, visit: Callable[[Body], None], lane: Any, known: Any) -> None:
        """Sum up a thread's run: mass above the threshold, number of tokens at it.

        `known` is the mass of tokens that are not visited.
        """
        above, ties = Cell("float32", known), Cell("int32", i32(0))

        def count(p: Any, bits: Any) -> None:
            above.add(tirx.Select(bits > self.threshold, p, zero()))
            ties.add(tirx.Select(bits == self.threshold, i32(1), i32(0)))

        visit(count)
        barrier()
        store(self.masses, above.value, lane)
        store(self.tie_counts, ties.value, lane)
        barrier()
        with when(lane < self.blocks):
            above.set(zero())
            ties.set(i32(0))
            with T.serial(0, self.length) as item:
                above.add(self.masses[lane * self.length + item])
                ties.add(self.tie_counts[lane * self.length + item])
            store(self.block_masses, above.value, lane)
            store(self.block_tie_counts, ties.value, lane)
        barrier()

    def settle_ties(self) -> None:
        """Count the tokens at the threshold that belong, and place the draw."""
        above, found = Cell("float32", zero()), Cell("int32", i32(0))
        with T.serial(0, self.blocks) as block:
            above.add(self.block_masses[block])
            found.add(self.block_tie_counts[block])
        with when(self.value > zero()):
            missing = tirx.max(self.wanted - above.value, zero()) / self.value
            needed = tirx.max(tirx.ceil(missing), f32(1.0)).astype("int32")
            self.ties.set(tirx.min(needed, found.value))
        self.drawn.set(self.uniform * (above.value + self.value * as_f32(self.ties.value)))

    def scan(self) -> None:
        """Choose the noted run in which the draw falls, and stand before it."""
        self._scan(i32(0), self.blocks, self.block_masses, self.block_tie_counts)
        first = let(self.chosen.value * self.length)
        self._scan(first, self.length, self.masses, self.tie_counts)

    def _scan(self, first: Any, count: int, masses: Any, tie_counts: Any) -> None:
        self.begin()
        with T.serial(0, count) as item:
            run = let(first + item)
            self._pass(run, masses[run], tie_counts[run])
        self.passed.set(self._base.value)
        self.seen.set(self._base_seen.value)

    def begin(self) -> None:
        """Stand before the first of the tokens that `pass_tokens` gets."""
        self.done.set(i32(0))

    def pass_tokens(self, probs: Any, v: Any) -> None:
        """Choose among tokens v to v + 3, if the draw falls there."""
        quad = let(probs[0, T.ramp(v, 1, VECTOR)])
        for lane in range(VECTOR):
            p = let(tirx.Shuffle([quad], [lane]))
            bits = let(tirx.reinterpret("int32", p))
            above = let(tirx.Select(bits > self.threshold, p, zero()))
            self._pass(v + lane, above, let(tirx.Select(bits == self.threshold, i32(1), i32(0))))

    def _pass(self, item: Any, mass: Any, tie_count: Any) -> None:
        belonging = tirx.min(tirx.max(self.ties.value - self.seen.value, i32(0)), tie_count)
        included = let(mass + self.value * as_f32(belonging))
        with when(self.done.value == 0):
            with when(included > zero()):
                # Rounding may leave the draw beyond the last token: then the last one that belongs
                # is chosen.
                self.chosen.set(item)
                self._base.set(self.passed.value)
                self._base_seen.set(self.seen.value)
                with when(self.passed.value + included > self.drawn.value):
                    self.done.set(i32(1))
            self.passed.add(included)
            self.seen.add(tie_count)
