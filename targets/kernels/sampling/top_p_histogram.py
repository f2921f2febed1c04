"""Sort runs of probabilities, each in a block, and sum them up.

Definition: `TopPHistogram.definition` in gemma4_compile/operators/sampling.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.sampling import (
    BINS,
    HISTOGRAM,
    RUN,
    TopPHistogram,
    bin_bits,
    bits_of,
)
from gemma4_compile.operators.tir import LocalVar, OneRow, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, IndexT
from gemma4_compile.targets.kernels.common.blocks import (
    REDUCTION_COLUMNS,
    VEC4,
    Block,
    barrier,
    launch,
    row_threads,
    several,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

HELD_BITS = 3  # of a token's place in its run: a share holds the 2**3 tokens that differ in them
HELD = 2**HELD_BITS
SHARES = RUN // HELD
PLACE_BITS = RUN.bit_length() - 1


def make_top_p_histogram(operator: TopPHistogram, spec: TargetSpec) -> tirx.PrimFunc:
    """Sort a run in shared memory, bisect it for each bin, then sum it up.

    Grid: runs x rows. Shared: the run, and two float32 a share. Reference:
    `TopPHistogram.definition`.
    """
    vocab, n = operator.vocab, operator.rows.extent()
    threads = row_threads(SHARES, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        probs = build.arg("probs", (n, vocab), "float32")
        ordered, sums, counts, masses = (
            build.arg(name, *result)
            for name, result in zip(HISTOGRAM, operator.results_of(n), strict=True)
        )
        with launch(threads, operator.runs, several(operator.rows, n)) as (run, i, thread):
            values, totals = shared((_place(RUN),)), shared((SHARES,))
            columns = shared((REDUCTION_COLUMNS,))
            block = Block(thread, threads, spec.simd_width)
            with strided(block, RUN // VEC4) as item:
                v = bind(run * RUN + item * VEC4)
                for lane, value in enumerate(_probabilities(OneRow(probs, i), v, vocab)):
                    store(values, -value if lane % 2 else value, _place(item * VEC4 + lane))
            _sort(block, values)
            shares = [bind(thread + first) for first in range(0, SHARES, threads)]
            held = [
                [bind(values[_place(share * HELD + item)]) for item in range(HELD)]
                for share in shares
            ]
            found = [
                (index, _count(values, index))
                for index in (bind(thread + first) for first in range(0, BINS, threads))
            ]
            running = [_running_sums(tokens) for tokens in held]
            for share, own in zip(shares, running, strict=True):
                store(totals, own[-1], share)
            before = _sums_before(totals, columns, thread, shares)
            for share, tokens, own, base in zip(shares, held, running, before, strict=True):
                after = [bind(base + value) for value in own]
                for number, value in enumerate(after):
                    store(values, value, _place(share * HELD + number))
                for half in range(0, HELD, VEC4):
                    place = T.ramp(share * HELD + half, 1, VEC4)
                    for buffer, row in ((ordered, tokens), (sums, after)):
                        vec4 = tirx.Shuffle(row[half : half + VEC4], list(range(VEC4)))
                        store(buffer, vec4, i, run, place)
            barrier()
            for index, count in found:
                mass = values[_place(tirx.max(count - 1, i32(0)))]
                store(counts, count, i, run, index)
                store(masses, tirx.Select(count > 0, mass, zero()), i, run, index)
    return build.result


def _probabilities(probs: OneRow, v: Expr, vocab: int) -> list[Expr]:
    """The probabilities of VEC4 tokens from v on; 0 beyond the vocabulary."""
    if vocab % VEC4:  # its last tokens fill no vec4, and would be read twice and at wrong places
        return [
            bind(
                probs[tirx.min(v + lane, vocab - 1)]
                * tirx.Select(v + lane < vocab, f32(1.0), zero())
            )
            for lane in range(VEC4)
        ]
    inside = tirx.Broadcast(tirx.Select(v < vocab, f32(1.0), zero()), VEC4)
    at = bind(tirx.min(v, vocab - VEC4))
    vec4 = bind(probs[T.ramp(at, 1, VEC4)] * inside)
    return [tirx.Shuffle([vec4], [lane]) for lane in range(VEC4)]


def _place(item: IndexT) -> IndexT:
    """Return the place of a token in shared memory: eighths of a run are in different banks."""
    if isinstance(item, int):
        return item + item // HELD
    return item + tirx.floordiv(item, HELD)


def _sort(block: Block, values: Buffer) -> None:
    """Sort in descending order, by a bitonic network; it begins and ends with a barrier.

    Level m merges pairs of sorted runs of 2**(m - 1) tokens, every other pair the other way round:
    the tokens of those (bit m of their places is set) are negative from its first round until the
    next level's. So are the tokens at odd places at the start.

    A level compares tokens whose places differ in bit m - 1, then m - 2, ..., three bits a round,
    for which a share holds eight tokens. Where the bits are not a multiple of three the first round
    compares some tokens that the second compares again, which changes nothing.
    """
    with T.serial(1, PLACE_BITS + 1) as step:
        level = bind(i32(step))
        rounds = bind(tirx.floordiv(level + (HELD_BITS - 1), HELD_BITS))
        with T.serial(0, rounds) as iteration:
            lowest = (rounds - 1 - i32(iteration)) * HELD_BITS
            low = bind(tirx.min(lowest, i32(PLACE_BITS - HELD_BITS)))
            barrier()
            for first in range(0, SHARES, block.threads):
                _compare(values, bind(block.thread + first), level, low, i32(iteration) == 0)
    barrier()


def _compare(values: Buffer, share: Expr, level: Expr, low: Expr, is_first: Expr) -> None:
    """The comparisons of a level at the bits from `low` on, of one share."""
    stride = bind(tirx.shift_left(i32(1), low))
    block = tirx.shift_left(tirx.shift_right(share, low), low + HELD_BITS)
    base = bind(block + tirx.bitwise_and(share, stride - 1))
    items = [bind(base + number * stride) for number in range(HELD)]
    places = [bind(_place(item)) for item in items]
    held = [LocalVar("float32", values[place]) for place in places]
    with when(is_first):
        for item, cell in zip(items, held, strict=True):
            bits = tirx.shift_right(item, level - 1)
            turned = tirx.bitwise_and(tirx.bitwise_xor(bits, tirx.shift_right(item, level)), i32(1))
            cell.set(cell.value * tirx.Select(turned == 1, f32(-1.0), f32(1.0)))
    for bit in reversed(range(HELD_BITS)):
        with when(low + bit < level):
            for number in range(HELD):
                if number >> bit & 1:
                    continue
                upper, lower = held[number], held[number + 2**bit]
                a, b = bind(upper.value), bind(lower.value)
                upper.set(tirx.max(a, b))
                lower.set(tirx.min(a, b))
    for place, cell in zip(places, held, strict=True):
        store(values, cell.value, place)


def _count(values: Buffer, index: Expr) -> Expr:
    """Return how many of the sorted tokens lie in a bin or above, by bisection."""
    count, begin = LocalVar("int32", i32(0)), bind(bin_bits(index))
    with T.serial(0, PLACE_BITS + 1) as step:
        size = bind(tirx.shift_right(i32(RUN), i32(step)))
        last = bind(count.value + size - 1)
        value = values[_place(tirx.min(last, i32(RUN - 1)))]
        belongs = tirx.all(last < RUN, bits_of(value) >= begin)
        count.add(tirx.Select(belongs, size, i32(0)))
    return bind(count.value)


def _running_sums(tokens: Sequence[Expr]) -> list[Expr]:
    """The sum of the first, the first two, ... of them."""
    sums = [tokens[0]]
    for token in tokens[1:]:
        sums.append(bind(sums[-1] + token))
    return sums


def _sums_before(
    totals: Buffer, columns: Buffer, thread: Expr, shares: Sequence[Expr]
) -> list[Expr]:
    """The sum of all shares before each of these."""
    length = SHARES // REDUCTION_COLUMNS
    within = shared((SHARES,))  # TVM would see a race if the totals were overwritten
    barrier()
    with when(thread < REDUCTION_COLUMNS):
        running = LocalVar("float32", zero())
        with T.serial(0, length) as item:
            place = bind(thread * length + item)
            store(within, running.value, place)
            running.add(totals[place])
        store(columns, running.value, thread)
    barrier()
    before = []
    for share in shares:
        column, total = bind(tirx.floordiv(share, length)), LocalVar("float32", zero())
        with T.serial(0, REDUCTION_COLUMNS) as other:
            total.add(tirx.Select(other < column, columns[other], zero()))
        before.append(bind(total.value + within[share]))
    return before
