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
    DIGITS,
    FIRST_SHIFT,
    GROUP,
    SURVEY_RUN,
    NucleusSurvey,
    SampleTopP,
)
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    LaneSums,
    barrier,
    launch,
    shared,
    strided,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

BITS_PER_PASS = 3  # one pass settles so many, with 2**3 - 1 sums a thread
VECTOR = 4  # tokens read together; a vocabulary is padded to a multiple of 32
Body = Callable[[Any, Any], None]  # of a probability and its bits


def _quad(probs: Any, v: Any, body: Body) -> None:
    """`body` for tokens v to v + 3."""
    quad = let(probs[0, T.ramp(v, 1, VECTOR)])
    for lane in range(VECTOR):
        p = let(tirx.Shuffle([quad], [lane]))
        body(p, let(tirx.reinterpret("int32", p)))


def make_nucleus_survey(operator: NucleusSurvey, _spec: TargetSpec) -> tirx.PrimFunc:
    """A thread a group. Grid: runs. Shared: eight words a thread.

    Reference: `NucleusSurvey.plain`.
    """
    vocab, groups = operator.vocab, operator.groups
    with function(scheduled=True) as build:
        probs = build.arg("probs", (1, vocab), "float32")
        maxima = build.arg("maxima", (groups,), "float32")
        masses = build.arg("masses", (operator.runs, DIGITS), "float32")
        with launch(SURVEY_RUN, operator.runs) as (run, _, thread):
            group = let(run * SURVEY_RUN + thread)
            highest = Cell("float32", zero())
            reached = [Cell("float32", zero()) for _ in range(DIGITS)]

            def count(p: Any, bits: Any) -> None:
                highest.set(tirx.max(highest.value, p))
                reached[0].add(p)
                for digit in range(1, DIGITS):
                    reached[digit].add(tirx.Select(bits >= i32(digit << FIRST_SHIFT), p, zero()))

            with T.serial(0, GROUP // VECTOR) as step:
                v = let(group * GROUP + step * VECTOR)
                with when(v < vocab):
                    _quad(probs, v, count)
            with when(group < groups):
                store(maxima, highest.value, group)
            values = [cell.value for cell in reached]
            totals = sum_over_lanes(values, thread, SURVEY_RUN, SURVEY_RUN)
            with when(thread == 0):
                for digit, total in enumerate(totals):
                    store(masses, total, run, digit)
    return build.result


def make_sample_top_p(operator: SampleTopP, _spec: TargetSpec) -> tirx.PrimFunc:
    """Nine passes find the threshold, two more the token; each passes over groups below it.

    Grid: 1. Shared: eleven words a lane. Reference: `SampleTopP.plain`.
    """
    vocab, lanes, turns, survey = operator.vocab, operator.lanes, operator.turns, operator.survey
    with function(scheduled=True) as build:
        probs = build.arg("probs", (1, vocab), "float32")
        maxima = build.arg("maxima", (survey.groups,), "float32")
        masses = build.arg("masses", (survey.runs, DIGITS), "float32")
        uniform = build.arg("uniform", (1,), "float32")
        top_p = build.arg("top_p", (1,), "float32")
        token = build.arg("token", (1,), "int32")
        with launch(lanes, 1) as (_, _, lane):

            def visit(bound: Any, body: Body) -> None:
                """The lane's tokens, without the groups that stay below the bound (bits)."""
                with T.serial(0, turns) as turn:
                    group = let(turn * lanes + lane)
                    with when(group < survey.groups):
                        highest = let(tirx.reinterpret("int32", maxima[group]))
                        with when(highest >= bound), T.serial(0, GROUP // VECTOR) as step:
                            v = let(group * GROUP + step * VECTOR)
                            with when(v < vocab):
                                _quad(probs, v, body)

            threshold, wanted = _threshold(visit, lane, lanes, masses, survey.runs, top_p)
            walk = _Walk(threshold, wanted, uniform[0], lanes)
            walk.note(lambda body: visit(threshold, body), lane)
            walk.settle_ties()
            walk.scan(lanes)
            line = let(walk.chosen.value)
            # The lane's tokens again, a few of them to each thread.
            quads = -(-turns * GROUP // (lanes * VECTOR))

            def visit_piece(piece: Any, found: Callable[[Any], None]) -> None:
                with T.serial(0, quads) as step:
                    item = let((piece * quads + step) * VECTOR)
                    turn, within = tirx.floordiv(item, GROUP), tirx.floormod(item, GROUP)
                    v = let((turn * lanes + line) * GROUP + within)
                    with when((turn < turns) & (v < vocab)):
                        found(v)

            walk.note(lambda body: visit_piece(lane, lambda v: _quad(probs, v, body)), lane)
            walk.scan(lanes)
            piece = let(walk.chosen.value)
            walk.begin()
            visit_piece(piece, lambda v: walk.pass_tokens(probs, v))
            with when(lane == 0):
                store(token, walk.chosen.value, 0)
    return build.result


def _threshold(
    visit: Callable[[Any, Body], None],
    lane: Any,
    lanes: int,
    survey: Any,
    runs: int,
    top_p: Any,
) -> tuple[Any, Any]:
    """The bits of the nucleus's smallest probability, and the mass it has to reach."""
    totals = shared((DIGITS,))
    with strided(lane, lanes, DIGITS) as digit:
        total = Cell("float32", zero())
        with T.serial(0, runs) as run:
            total.add(survey[run, digit])
        store(totals, total.value, digit)
    barrier()
    wanted = let(tirx.min(top_p[0], totals[0]))
    threshold = Cell("int32", i32(0))
    digits = range(1, DIGITS)
    for digit in digits:
        mass = Cell("float32", totals[digit])
        with when((mass.value >= wanted) & (mass.value > zero())):
            threshold.set(i32(digit << FIRST_SHIFT))
    masses = [Cell("float32") for _ in digits]
    sums = LaneSums(len(masses), lane, lanes, lanes)
    with T.serial(0, FIRST_SHIFT // BITS_PER_PASS) as step:
        shift = let(i32(FIRST_SHIFT - BITS_PER_PASS) - i32(step) * BITS_PER_PASS)
        base = let(threshold.value)
        for mass in masses:
            mass.set(zero())

        def sort_in(p: Any, bits: Any) -> None:
            for digit, mass in zip(digits, masses, strict=True):
                bound = base + tirx.shift_left(i32(digit), shift)
                mass.add(tirx.Select(bits >= bound, p, zero()))

        visit(let(base + tirx.shift_left(i32(1), shift)), sort_in)
        barrier()  # the sums of the pass before may still be being read
        reached = sums([mass.value for mass in masses])
        for mass, total in zip(masses, reached, strict=True):
            mass.set(total)
        for digit, mass in zip(digits, masses, strict=True):
            with when((mass.value >= wanted) & (mass.value > zero())):
                threshold.set(base + tirx.shift_left(i32(digit), shift))
    return let(threshold.value), wanted


class _Walk:
    """Walks over all lanes, pieces of a lane, tokens of a piece, to where the draw falls.

    Every thread walks alike over what the threads noted in shared memory.
    """

    def __init__(self, threshold: Any, wanted: Any, uniform: Any, lanes: int) -> None:
        self.threshold, self.wanted, self.uniform, self.lanes = threshold, wanted, uniform, lanes
        self.value = let(tirx.reinterpret("float32", threshold))
        self.masses, self.tie_counts = shared((lanes,)), shared((lanes,), "int32")
        self.ties, self.drawn = Cell("int32", i32(0)), Cell("float32", zero())
        self.passed, self.seen = Cell("float32", zero()), Cell("int32", i32(0))
        self.chosen, self.done = Cell("int32", i32(0)), Cell("int32", i32(0))
        self._base, self._base_seen = Cell("float32", zero()), Cell("int32", i32(0))

    def note(self, visit: Callable[[Callable[[Any, Any], None]], None], lane: Any) -> None:
        """Sum up a thread's run: mass above the threshold, number of tokens at it."""
        above, ties = Cell("float32", zero()), Cell("int32", i32(0))

        def count(p: Any, bits: Any) -> None:
            above.add(tirx.Select(bits > self.threshold, p, zero()))
            ties.add(tirx.Select(bits == self.threshold, i32(1), i32(0)))

        visit(count)
        barrier()
        store(self.masses, above.value, lane)
        store(self.tie_counts, ties.value, lane)
        barrier()

    def settle_ties(self) -> None:
        """Count the tokens at the threshold that belong, and place the draw."""
        above, found = Cell("float32", zero()), Cell("int32", i32(0))
        with T.serial(0, self.lanes) as lane:
            above.add(self.masses[lane])
            found.add(self.tie_counts[lane])
        with when(self.value > zero()):
            missing = tirx.max(self.wanted - above.value, zero()) / self.value
            needed = tirx.max(tirx.ceil(missing), f32(1.0)).astype("int32")
            self.ties.set(tirx.min(needed, found.value))
        self.drawn.set(self.uniform * (above.value + self.value * as_f32(self.ties.value)))

    def scan(self, runs: int) -> None:
        """Choose the noted run in which the draw falls, and stand before it."""
        self.done.set(i32(0))
        with T.serial(0, runs) as run:
            self._pass(run, self.masses[run], self.tie_counts[run])
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
