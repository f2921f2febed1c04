"""Draw a token from the nucleus without sorting.

One thread block, a search on the bits of the probabilities.

Plain form: `SampleTopP.plain` in model_spec/operators/sampling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.sampling import SampleTopP
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    LaneSums,
    barrier,
    launch,
    shared,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

BITS = 30  # of a probability: it is at most 1.0, whose bits are below 2**30
BITS_PER_PASS = 3  # one pass over the vocabulary settles so many, with 2**3 - 1 sums a thread


def make_sample_top_p(operator: SampleTopP, _spec: TargetSpec) -> tirx.PrimFunc:
    """Ten passes find the threshold, two more the token. Grid: 1. Shared: ten words a lane.

    Lane l visits tokens l, l + lanes, ...; tokens count in that order. Reference:
    `SampleTopP.plain`.
    """
    vocab, lanes = operator.vocab, operator.lanes
    with function(scheduled=True) as build:
        probs = build.arg("probs", (1, vocab), "float32")
        uniform = build.arg("uniform", (1,), "float32")
        top_p = build.arg("top_p", (1,), "float32")
        token = build.arg("token", (1,), "int32")
        with launch(lanes, 1) as (_, _, lane):
            turns = -(-vocab // lanes)

            def visit(first: Any, count: int, line: Any, body: Callable[[Any, Any], None]) -> None:
                """`body(probability, its bits)` for turns [first, first + count) of a lane."""
                with T.serial(0, count) as step:
                    v = let((first + step) * lanes + line)
                    with when(v < vocab):
                        p = let(probs[0, v])
                        body(p, let(tirx.reinterpret("int32", p)))

            threshold, wanted = _threshold(visit, lane, lanes, turns, top_p)
            walk = _Walk(threshold, wanted, uniform[0], lanes)
            walk.note(lambda body: visit(0, turns, lane, body), lane)
            walk.settle_ties()
            walk.scan(lanes)
            line = let(walk.chosen.value)
            per_lane = -(-turns // lanes)
            walk.note(lambda body: visit(lane * per_lane, per_lane, line, body), lane)
            walk.scan(lanes)
            first = let(walk.chosen.value * per_lane)
            walk.scan_tokens(probs, vocab, lambda step: (first + step) * lanes + line, per_lane)
            with when(lane == 0):
                store(token, walk.chosen.value, 0)
    return build.result


def _threshold(
    visit: Callable[..., None], lane: Any, lanes: int, turns: int, top_p: Any
) -> tuple[Any, Any]:
    """The bits of the nucleus's smallest probability, and the mass it has to reach."""
    whole = Cell("float32", zero())
    visit(0, turns, lane, lambda p, bits: whole.add(p))
    wanted = let(tirx.min(top_p[0], BlockReduction(lane, lanes)(whole.value)))
    threshold = Cell("int32", i32(0))
    digits = range(1, 2**BITS_PER_PASS)
    masses = [Cell("float32") for _ in digits]
    sums = LaneSums(len(masses), lane, lanes, lanes)
    with T.serial(0, BITS // BITS_PER_PASS) as step:
        shift = let(i32(BITS - BITS_PER_PASS) - i32(step) * BITS_PER_PASS)
        base = let(threshold.value)
        for mass in masses:
            mass.set(zero())

        def sort_in(p: Any, bits: Any) -> None:
            for digit, mass in zip(digits, masses, strict=True):
                bound = base + tirx.shift_left(i32(digit), shift)
                mass.add(tirx.Select(bits >= bound, p, zero()))

        visit(0, turns, lane, sort_in)
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
        above = Cell("float32", zero())
        with T.serial(0, self.lanes) as lane:
            above.add(self.masses[lane])
        with when(self.value > zero()):
            missing = tirx.max(self.wanted - above.value, zero()) / self.value
            self.ties.set(tirx.max(tirx.ceil(missing), f32(1.0)).astype("int32"))
        self.drawn.set(self.uniform * (above.value + self.value * as_f32(self.ties.value)))

    def scan(self, runs: int) -> None:
        """Choose the noted run in which the draw falls, and stand before it."""
        self.done.set(i32(0))
        with T.serial(0, runs) as run:
            self._pass(run, self.masses[run], self.tie_counts[run])
        self.passed.set(self._base.value)
        self.seen.set(self._base_seen.value)

    def scan_tokens(
        self, probs: Any, vocab: int, token_of: Callable[[Any], Any], count: int
    ) -> None:
        """Choose the token in which the draw falls."""
        self.done.set(i32(0))
        with T.serial(0, count) as step:
            v = let(token_of(step))
            with when(v < vocab):
                p = let(probs[0, v])
                bits = let(tirx.reinterpret("int32", p))
                above = tirx.Select(bits > self.threshold, p, zero())
                self._pass(v, let(above), let(tirx.Select(bits == self.threshold, i32(1), i32(0))))

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
