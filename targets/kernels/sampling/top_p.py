"""Draw a token from the top-p set in two launches.

The first sorts runs of tokens, each in a block, and sums them up. The second, one block, finds
the threshold bit by bit: in each run by bisection, so that it reads but few of the tokens.

Definitions: `TopPHistogram.definition` and `SampleTopP.definition` in operators/sampling.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.sampling import (
    BIN_SHIFT,
    BINS,
    HISTOGRAM,
    RUN,
    SampleTopP,
    bin_bits,
    bits_of,
)
from gemma4_compile.operators.tir import LocalVar, OneRow, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    REDUCTION_COLUMNS,
    VEC4,
    Block,
    BlockReduction,
    LaneSums,
    barrier,
    launch,
    row_threads,
    several,
    shared,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

BITS_PER_PASS = 3  # one pass settles so many, with 2**3 - 1 sums a thread
PASSES = -(-BIN_SHIFT // BITS_PER_PASS)
DIGITS = range(1, 2**BITS_PER_PASS)
PARTS = 16  # loads of a thread under way
Body = Callable[[Expr, Expr], None]  # of a probability and its bits


def _lanes(vec4: Expr, body: Body) -> None:
    """`body` for the four tokens of a vector; a vocabulary is padded to a multiple of 32."""
    for lane in range(VEC4):
        p = bind(tirx.Shuffle([vec4], [lane]))
        body(p, bind(bits_of(p)))


def make_sample_top_p(operator: SampleTopP, spec: TargetSpec) -> tirx.PrimFunc:
    """One bin holds the threshold; each lane searches the sorted tokens of its runs.

    Grid: 1 x rows. Shared: about ten words a lane. Reference: `SampleTopP.definition`.
    """
    vocab, histogram, n = operator.vocab, operator.histogram, operator.rows.extent()
    lanes = row_threads(RUN, spec.max_threads_per_block)
    iterations = -(-histogram.runs // lanes)  # neighbouring runs of a lane
    with function(scheduled=True) as build:
        whole = build.arg("probs", (n, vocab), "float32")
        arguments = [
            build.arg(name, *spec)
            for name, spec in zip(HISTOGRAM, histogram.results_of(n), strict=True)
        ]
        uniform = build.arg("uniform", (n,), "float32")
        top_p = build.arg("top_p", (1,), "float32")
        token = build.arg("token", (n,), "int32")
        with launch(lanes, 1, several(operator.rows, n)) as (_, i, lane):
            block = Block(lane, lanes, spec.simd_width)
            probs = OneRow(whole, i)
            ordered, sums, counts, masses = (OneRow(argument, i) for argument in arguments)
            found = _Bin(block, masses, histogram.runs, top_p)
            runs = [
                _Run(
                    ordered, sums, counts, masses, bind(lane * iterations + iteration), found.index
                )
                for iteration in range(iterations)
            ]
            threshold = _threshold(block, runs, found)
            walk = _Walk(threshold, found.wanted, uniform[i], lanes)
            above = sum((run.mass_above.value for run in runs[1:]), runs[0].mass_above.value)
            walk.note(lane, above, sum((run.inside for run in runs[1:]), runs[0].inside))
            walk.settle_ties()
            walk.scan()
            first = bind(walk.chosen.value * (iterations * RUN))
            # The lane's tokens, a few neighbours to each thread.
            vec4s = iterations * RUN // (lanes * VEC4)

            def visit_piece(piece: Expr, body: Callable[[Expr], None]) -> None:
                with T.serial(0, vec4s) as step:
                    v = bind(first + (piece * vec4s + step) * VEC4)
                    with when(v < vocab):
                        body(v)

            mass, ties = LocalVar("float32", zero()), LocalVar("int32", i32(0))

            def count(p: Expr, bits: Expr) -> None:
                mass.add(tirx.Select(bits > threshold, p, zero()))
                ties.add(tirx.Select(bits == threshold, i32(1), i32(0)))

            visit_piece(lane, lambda v: _lanes(bind(probs[T.ramp(v, 1, VEC4)]), count))
            walk.note(lane, mass.value, ties.value)
            walk.scan()
            piece = bind(walk.chosen.value)
            walk.begin()
            visit_piece(piece, lambda v: walk.pass_tokens(probs, v))
            with when(lane == 0):
                store(token, walk.chosen.value, i)
    return build.result


class _Bin:
    """The bin that holds the threshold."""

    def __init__(self, block: Block, masses: OneRow, runs: int, top_p: Buffer) -> None:
        lane, lanes = block.thread, block.threads
        whole = shared((1,))
        mine = []
        for first in range(0, BINS, lanes):
            index = bind(tirx.min(lane + first, BINS - 1))
            parts = [LocalVar("float32", zero()) for _ in range(PARTS)]
            with T.serial(0, -(-runs // PARTS)) as step:
                places = [bind(step * PARTS + load) for load in range(PARTS)]
                values = [bind(masses[tirx.min(run, runs - 1), index]) for run in places]
                for part, run, value in zip(parts, places, values, strict=True):
                    part.add(tirx.Select(run < runs, value, zero()))
            total = bind(sum((part.value for part in parts[1:]), parts[0].value))
            mine.append((index, total))
            with when(index == 0):
                store(whole, total, 0)
        barrier()
        self.wanted = bind(tirx.min(top_p[0], whole[0]))
        best = LocalVar("float32", zero())
        for index, total in mine:
            reaches = (total >= self.wanted) & (total > zero())
            best.set(tirx.max(best.value, tirx.Select(reaches, as_f32(index), zero())))
        reduce = BlockReduction(block)
        self.index = bind(i32(reduce(best.value, tirx.max)))


class _Run:
    """Tokens [above, reached) of a sorted run that a search still has to tell apart.

    Attributes
    ----------
    above, reached : how many tokens lie above the searched bits, and how many in or above them
    mass_above : mass of those above
    """

    def __init__(
        self, ordered: OneRow, sums: OneRow, counts: OneRow, masses: OneRow, run: Expr, index: Expr
    ) -> None:
        last = int(ordered.shape[0]) - 1
        self._ordered, self._sums, self._run = ordered, sums, bind(tirx.min(run, last))
        exists, has_above = run <= last, tirx.all(run <= last, index < BINS - 1)
        following = bind(tirx.min(index + 1, BINS - 1))
        reached, above = bind(counts[self._run, index]), bind(counts[self._run, following])
        mass = bind(masses[self._run, following])
        self.reached = LocalVar("int32", tirx.Select(exists, reached, i32(0)))
        self.above = LocalVar("int32", tirx.Select(has_above, above, i32(0)))
        self.mass_above = LocalVar("float32", tirx.Select(has_above, mass, zero()))
        self._counts = [LocalVar("int32") for _ in DIGITS]
        self.masses = [LocalVar("float32") for _ in DIGITS]

    @property
    def inside(self) -> Expr:
        """Tokens that are not distinguished."""
        return self.reached.value - self.above.value

    def search(self, places: Sequence[Expr]) -> None:
        """Find how many tokens have these bits or higher ones, and set `masses` to theirs."""
        run, above, reached = self._run, bind(self.above.value), bind(self.reached.value)
        for count, mass in zip(self._counts, self.masses, strict=True):
            count.set(above)
            mass.set(self.mass_above.value)
        with when(above < reached):
            with T.serial(0, RUN.bit_length()) as step:
                size = bind(tirx.shift_right(i32(RUN), i32(step)))
                with when(size <= reached - above):
                    self._bisect(places, size, reached)
            found = [bind(self._sums[run, tirx.max(c.value - 1, i32(0))]) for c in self._counts]
            for count, mass, value in zip(self._counts, self.masses, found, strict=True):
                mass.set(tirx.Select(count.value > 0, value, zero()))

    def _bisect(self, places: Sequence[Expr], size: Expr, reached: Expr) -> None:
        probes = [bind(count.value + size - 1) for count in self._counts]
        values = [bind(self._ordered[self._run, tirx.min(at, RUN - 1)]) for at in probes]
        for count, at, value, place in zip(self._counts, probes, values, places, strict=True):
            belongs = tirx.all(at < reached, bits_of(value) >= place)
            count.add(tirx.Select(belongs, size, i32(0)))

    def choose(self, digit: Expr) -> None:
        """Keep the tokens between a digit's place and the next one's."""
        for number, (count, mass) in enumerate(zip(self._counts, self.masses, strict=True)):
            with when(digit == number):
                self.above.set(count.value)
                self.mass_above.set(mass.value)
            with when(digit == number + 1):
                self.reached.set(count.value)


def _threshold(block: Block, runs: Sequence[_Run], found: _Bin) -> Expr:
    """The bits of the set's smallest probability; the runs keep the tokens that have them."""
    threshold = LocalVar("int32", bin_bits(found.index))
    end, digit = LocalVar("int32", bin_bits(found.index + 1)), LocalVar("int32", i32(0))
    lane_sums = LaneSums(block, len(DIGITS), block.threads)
    with T.serial(0, PASSES) as step:
        shift = bind(i32((PASSES - 1) * BITS_PER_PASS) - i32(step) * BITS_PER_PASS)
        unit, base, stop = (
            bind(tirx.shift_left(i32(1), shift)),
            bind(threshold.value),
            bind(end.value),
        )
        places = [bind(base + number * unit) for number in DIGITS]
        for run in runs:
            run.search(places)
        columns = zip(*(run.masses for run in runs), strict=True)
        parts = [sum((cell.value for cell in column[1:]), column[0].value) for column in columns]
        barrier()  # the sums of the pass before may still be being read
        digit.set(i32(0))
        for number, place, mass in zip(DIGITS, places, lane_sums(parts), strict=True):
            total = bind(mass)
            reaches = (total >= found.wanted) & (total > zero())
            with when((place < stop) & reaches):
                digit.set(i32(number))
        chosen = bind(digit.value)
        for run in runs:
            run.choose(chosen)
        threshold.set(base + chosen * unit)
        end.set(tirx.min(stop, base + (chosen + 1) * unit))
    return bind(threshold.value)


class _Walk:
    """Walks over all lanes, the threads' shares of a lane, their tokens, to where the draw falls.

    Every thread walks alike over what the threads noted in shared memory: first over blocks of
    neighbours, then over the threads of one.
    """

    def __init__(self, threshold: Expr, wanted: Expr, uniform: Expr, lanes: int) -> None:
        self.threshold, self.wanted, self.uniform = threshold, wanted, uniform
        self.blocks = min(lanes, REDUCTION_COLUMNS)
        self.length = lanes // self.blocks
        self.value = bind(tirx.reinterpret("float32", threshold))
        self.masses, self.tie_counts = shared((lanes,)), shared((lanes,), "int32")
        self.block_masses = shared((self.blocks,))
        self.block_tie_counts = shared((self.blocks,), "int32")
        self.ties, self.drawn = LocalVar("int32", i32(0)), LocalVar("float32", zero())
        self.passed, self.seen = LocalVar("float32", zero()), LocalVar("int32", i32(0))
        self.chosen, self.done = LocalVar("int32", i32(0)), LocalVar("int32", i32(0))
        self._base, self._base_seen = LocalVar("float32", zero()), LocalVar("int32", i32(0))

    def note(self, lane: Expr, mass: Expr, tie_count: Expr) -> None:
        """Note a thread's tokens: mass above the threshold, number of tokens at it."""
        barrier()
        store(self.masses, mass, lane)
        store(self.tie_counts, tie_count, lane)
        barrier()
        with when(lane < self.blocks):
            above, ties = LocalVar("float32", zero()), LocalVar("int32", i32(0))
            with T.serial(0, self.length) as item:
                above.add(self.masses[lane * self.length + item])
                ties.add(self.tie_counts[lane * self.length + item])
            store(self.block_masses, above.value, lane)
            store(self.block_tie_counts, ties.value, lane)
        barrier()

    def settle_ties(self) -> None:
        """Count the tokens at the threshold that belong, and place the draw."""
        above, found = LocalVar("float32", zero()), LocalVar("int32", i32(0))
        with T.serial(0, self.blocks) as block:
            above.add(self.block_masses[block])
            found.add(self.block_tie_counts[block])
        with when(self.value > zero()):
            missing = tirx.max(self.wanted - above.value, zero()) / self.value
            # Clamped before the cast: over a tiny value, what rounding misses has no integer.
            needed = tirx.min(tirx.max(tirx.ceil(missing), f32(1.0)), as_f32(found.value))
            self.ties.set(needed.astype("int32"))
        self.drawn.set(self.uniform * (above.value + self.value * as_f32(self.ties.value)))

    def scan(self) -> None:
        """Choose the noted run in which the draw falls, and stand before it."""
        self._scan(i32(0), self.blocks, self.block_masses, self.block_tie_counts)
        first = bind(self.chosen.value * self.length)
        self._scan(first, self.length, self.masses, self.tie_counts)

    def _scan(self, first: Expr, count: int, masses: Buffer, tie_counts: Buffer) -> None:
        self.begin()
        with T.serial(0, count) as item:
            run = bind(first + item)
            self._pass(run, masses[run], tie_counts[run])
        self.passed.set(self._base.value)
        self.seen.set(self._base_seen.value)

    def begin(self) -> None:
        """Stand before the first of the tokens that `pass_tokens` gets."""
        self.done.set(i32(0))

    def pass_tokens(self, probs: OneRow, v: Expr) -> None:
        """Choose among tokens v to v + 3, if the draw falls there."""
        vec4 = bind(probs[T.ramp(v, 1, VEC4)])
        for lane in range(VEC4):
            p = bind(tirx.Shuffle([vec4], [lane]))
            bits = bind(bits_of(p))
            above = bind(tirx.Select(bits > self.threshold, p, zero()))
            self._pass(v + lane, above, bind(tirx.Select(bits == self.threshold, i32(1), i32(0))))

    def _pass(self, item: Expr, mass: Expr, tie_count: Expr) -> None:
        belonging = tirx.min(tirx.max(self.ties.value - self.seen.value, i32(0)), tie_count)
        included = bind(mass + self.value * as_f32(belonging))
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
