"""The splits of an attention put together. Plain form: `MergeSplits.plain`."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.attention import LOWEST, MergeSplits
from gemma4_compile.model_spec.operators.math import f32
from gemma4_compile.model_spec.operators.tir import function, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    barrier,
    launch,
    local,
    power_of_two_at_most,
    shared,
    zero,
)
from gemma4_compile.targets.kernels.vectors import Vectors
from gemma4_compile.targets.spec import TargetSpec

MAX_GROUPS = 16  # groups of threads that divide the splits


def merged_channel(sums: Any, stats: Any, splits: int, h: Any, d: Any) -> Any:
    """One channel of a head over all splits, each weighed by its maximum: float32."""
    highest: Any = stats[0, h, 0]
    for split in range(1, splits):
        highest = tirx.max(highest, stats[split, h, 0])
    highest = let(highest)
    weights = [let(tirx.exp(stats[split, h, 0] - highest)) for split in range(splits)]
    weight_sum = sum((weights[s] * stats[s, h, 1] for s in range(splits)), zero())
    return let(sum((weights[s] * sums[s, h, d] for s in range(splits)), zero()) / weight_sum)


def make_merge_splits(operator: MergeSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """Weigh each split by its maximum.

    Grid: heads x slices of channels. A group of threads sums some splits of a slice, whose loads
    are under way while the block finds the weights. Shared: a float32 a split, and a vector a
    thread. Reference: `MergeSplits.plain`.
    """
    dim, heads, splits = operator.head_dim, operator.heads, operator.splits
    vectors = Vectors.dividing(dim)
    columns = dim // vectors.size
    threads = min(128, spec.max_threads_per_block)
    groups = min(MAX_GROUPS, power_of_two_at_most(splits))
    width = threads // groups  # columns of a slice
    own, turns = -(-splits // groups), -(-splits // threads)
    with function(scheduled=True) as build:
        sums = build.arg("sums", (splits, heads, dim), "float32")
        stats = build.arg("stats", (splits, heads, 2), "float32")
        out = build.arg("out", (1, heads * dim), operator.out_dtype)
        with launch(threads, heads, -(-columns // width)) as (h, slice_, thread):
            group = let(tirx.floordiv(thread, width))
            column = let(slice_ * width + tirx.floormod(thread, width))
            place = vectors.at(let(tirx.min(column, columns - 1)))
            loaded = local((own * vectors.size,))
            for index in range(own):
                split = let(tirx.min(group + index * groups, splits - 1))
                store(loaded, sums[split, h, place], vectors.at(index))
            factors = shared((own * groups,))
            _write_factors(stats, h, thread, threads, turns, factors, splits)
            total = local((vectors.size,))
            store(total, vectors.splat(zero()), vectors.at(0))
            for index in range(own):
                factor = let(factors[group + index * groups])
                product = loaded[vectors.at(index)] * vectors.splat(factor)
                store(total, total[vectors.at(0)] + product, vectors.at(0))
            partial = shared((groups, width * vectors.size))
            mine = vectors.at(let(tirx.floormod(thread, width)))
            store(partial, total[vectors.at(0)], group, mine)
            barrier()
            with when((thread < width) & (column < columns)):
                with T.serial(1, groups) as other:
                    store(total, total[vectors.at(0)] + partial[other, mine], vectors.at(0))
                result = vectors.cast(total[vectors.at(0)], operator.out_dtype)
                store(out, result, 0, vectors.at(h * columns + column))
    return build.result


def _write_factors(
    stats: Any, h: Any, thread: Any, threads: int, turns: int, factors: Any, splits: int
) -> None:
    """The share of each split in the result; 0 behind the last, which stands for repeated loads."""
    reduce = BlockReduction(thread, threads)
    found = []
    for turn in range(turns):
        split = let(thread + turn * threads)
        bound, inside = let(tirx.min(split, splits - 1)), split < splits
        highest = let(tirx.Select(inside, stats[bound, h, 0], f32(LOWEST)))
        found.append((split, highest, let(tirx.Select(inside, stats[bound, h, 1], zero()))))
    own = f32(LOWEST)
    for _, highest, _ in found:
        own = tirx.max(own, highest)
    most = reduce(own, tirx.max)
    weights = [let(tirx.exp(highest - most)) for _, highest, _ in found]
    shares = (weight * total for weight, (_, _, total) in zip(weights, found, strict=True))
    whole = reduce(sum(shares, zero()))
    for weight, (split, _, _) in zip(weights, found, strict=True):
        with when(split < factors.shape[0]):
            store(factors, tirx.Select(split < splits, weight / whole, zero()), split)
    barrier()
