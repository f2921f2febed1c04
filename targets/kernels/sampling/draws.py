"""Draw tokens by exact masses of digits of their probabilities.

Four launches: maxima (softmax.py), probabilities and masses of bins, the threshold's bin, and the
token. The first three are of many blocks a row. Definitions: gemma4_compile/operators/draws.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.draws import (
    BIN_SHIFT,
    BINS,
    LISTED,
    SEGMENT,
    DrawProbs,
    TopPBin,
    as_mass,
    divisor_of,
    fraction_of,
    i64,
    mass_of,
    scaled,
)
from gemma4_compile.operators.sampling import bits_of, weight_of
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import (
    VEC4,
    Block,
    add,
    barrier,
    launch,
    row_threads,
    shared,
    strided,
)
from gemma4_compile.targets.kernels.sampling.softmax import merged
from gemma4_compile.targets.kernels.sampling.warp_sums import add_mass, count_shared, running_sum
from gemma4_compile.targets.spec import TargetSpec


def neighbours(
    vocab: int, first: Expr, count: int, load: Callable[[Expr, int], Expr]
) -> list[LocalVar]:
    """Values of so many tokens from `first` on, asked for at once; beyond the vocabulary any.

    `load` : reads a token, or VEC4 from one on
    """
    width = VEC4 if vocab % VEC4 == 0 and count % VEC4 == 0 else 1
    cells = []
    for item in range(0, count, width):
        at = bind(tirx.min(first + item, i32(vocab - width)))
        cells.append(LocalVar("float32x4" if width > 1 else "float32", load(at, width)))
    if width == 1:
        return cells
    return [
        LocalVar("float32", tirx.Shuffle([cell.value], [lane]))
        for cell in cells
        for lane in range(VEC4)
    ]


def ramp(at: Expr, width: int) -> Expr:
    """Places of `width` neighbours."""
    place: Expr = T.ramp(at, 1, width) if width > 1 else at
    return place


def make_draw_probs(operator: DrawProbs, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block merges a row's partials, writes its segment, and adds its masses.

    Grid: segments x rows. Shared: a count and a sum for each bin. Reference:
    `DrawProbs.definition`.
    """
    vocab, blocks, n = operator.vocab, operator.blocks, operator.rows.extent()
    threads = row_threads(SEGMENT, spec.max_threads_per_block)
    per_thread = SEGMENT // threads
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, n, vocab), "float32")
        temperature = build.arg("temperature", (1,), "float32")
        partials = build.arg("partials", (n, blocks, 2), "float32")
        masses = build.arg("masses", (n, BINS), "int64")
        probs = build.arg("probs", (n, vocab), "float32")
        with launch(threads, -(-vocab // SEGMENT), n) as (segment, i, thread):
            block = Block(thread, threads, spec.simd_width)
            counts, lows = (shared((BINS,), "int32") for _ in range(2))
            first = bind(segment * SEGMENT + thread * per_thread)
            own = neighbours(
                vocab, first, per_thread, lambda at, width: logits[0, i, ramp(at, width)]
            )
            with strided(block, BINS) as index:
                store(counts, i32(0), index)
                store(lows, i32(0), index)
            top, total = merged(block, blocks, partials, i, temperature)
            whole = bind(divisor_of(total))
            barrier()
            for number, cell in enumerate(own):
                v = bind(first + number)
                cell.set(weight_of(cell.value, top, temperature[0]) / whole)
                with when(v < vocab):
                    store(probs, cell.value, i, v)
                    bits = bind(bits_of(cell.value))
                    with when(bits > 0):
                        index = bind(tirx.shift_right(bits, i32(BIN_SHIFT)))
                        count_shared(counts, index, i32(1))
                        count_shared(lows, index, tirx.bitwise_and(bits, i32((1 << BIN_SHIFT) - 1)))
            barrier()
            with strided(block, BINS) as index:
                count = bind(counts[index])
                with when(count > 0):
                    bits = bind(tirx.shift_left(index, i32(BIN_SHIFT)))
                    fractions = i64(count) * fraction_of(bits) + i64(lows[index])
                    add_mass(masses, i, index, value=scaled(fractions, bits))
    return build.result


def make_top_p_bin(operator: TopPBin, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block finds the row's bin, and lists those of its segment that lie in it.

    Grid: segments x rows. Shared: the bin, and what running sums need. Reference:
    `TopPBin.definition`.
    """
    vocab, n = operator.vocab, operator.rows.extent()
    threads = row_threads(SEGMENT, spec.max_threads_per_block)
    per_thread, bins = SEGMENT // threads, BINS // threads
    with function(scheduled=True) as build:
        probs = build.arg("probs", (n, vocab), "float32")
        masses = build.arg("masses", (n, BINS), "int64")
        top_p = build.arg("top_p", (1,), "float32")
        found, above, counts, listed = (
            build.arg(name, *result)
            for name, result in zip(LISTED, operator.results_of(n), strict=True)
        )
        with launch(threads, operator.segments, n) as (segment, i, thread):
            block = Block(thread, threads, spec.simd_width)
            bin_of, mass_above = shared((1,), "int32"), shared((1,), "int64")
            first = bind(segment * SEGMENT + thread * per_thread)
            own = neighbours(vocab, first, per_thread, lambda at, width: probs[i, ramp(at, width)])
            with when(thread == 0):
                store(bin_of, i32(0), 0)
                store(mass_above, i64(0), 0)
            # From the highest bin down.
            places = [bind(i32(BINS - 1) - (thread * bins + step)) for step in range(bins)]
            parts = [LocalVar("int64", masses[i, place]) for place in places]
            sums = running_sum(block, reduce(add, [part.value for part in parts]), "int64")
            wanted = LocalVar("int64", tirx.min(as_mass(top_p[0]), sums.whole))
            wanted.set(tirx.max(wanted.value, i64(1)))
            reached = LocalVar("int64", sums.before)
            for place, part in zip(places, parts, strict=True):
                after = bind(reached.value + part.value)
                with when(tirx.all(reached.value < wanted.value, after >= wanted.value)):
                    store(bin_of, place, 0)
                    store(mass_above, reached.value, 0)
                reached.add(part.value)
            barrier()
            chosen = LocalVar("int32", bin_of[0])
            with when(tirx.all(segment == 0, thread == 0)):
                for item, value in enumerate((wanted.value, i64(chosen.value), mass_above[0])):
                    store(found, value, i, item)
            mass, count = LocalVar("int64", i64(0)), LocalVar("int32", i32(0))
            for number, cell in enumerate(own):
                bits = bind(bits_of(cell.value))
                index = bind(tirx.shift_right(bits, i32(BIN_SHIFT)))
                with when(first + number < vocab):
                    with when(index > chosen.value):
                        mass.add(mass_of(bits))
                    with when(index == chosen.value):
                        count.add(i32(1))
            of_counts = running_sum(block, count.value, "int32")
            of_masses = running_sum(block, mass.value, "int64")
            at = LocalVar("int32", of_counts.before)
            for number, cell in enumerate(own):
                index = bind(tirx.shift_right(bits_of(cell.value), i32(BIN_SHIFT)))
                with when(tirx.all(first + number < vocab, index == chosen.value)):
                    store(listed, cell.value, i, segment, at.value)
                    at.add(i32(1))
            with when(thread == 0):
                store(above, of_masses.whole, i, segment)
                store(counts, of_counts.whole, i, segment)
    return build.result
