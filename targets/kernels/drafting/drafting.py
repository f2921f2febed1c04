"""Candidates of a draft and the best of them. Definitions: operators/drafting.py."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.drafting import (
    NO_TOKEN,
    RUN,
    BestToken,
    BestTokenPartials,
    CandidateLogits,
    ClusterTokens,
    key_of,
    row_of,
)
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import (
    LocalVar,
    OneRow,
    bind,
    function,
    i32,
    materialize,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    add,
    barrier,
    launch,
    row_threads,
    several,
    shared,
    strided,
    sum_over_lanes,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.float_gemv import accumulate_rows
from gemma4_compile.targets.kernels.moe.expert_choice import read_score
from gemma4_compile.targets.spec import TargetSpec

CLUSTERS_OF_BLOCK = 16  # of 2048: as many blocks as a large GPU has multiprocessors
LANES = 32  # at most, that share a candidate's row; each decodes at least a word of it


def make_cluster_tokens(operator: ClusterTokens, spec: TargetSpec) -> tirx.PrimFunc:
    """A block's clusters are ranked by those that come before them; the best write their tokens.

    A cluster's place hangs on no other's, and places are all different whatever the scores are, so
    that every token is written, by one block. Several threads share the comparisons of a cluster.

    Grid: clusters / CLUSTERS_OF_BLOCK x rows. Shared: an int32 a thread and a cluster. Reference:
    `ClusterTokens.definition`.
    """
    clusters, size = operator.clusters, operator.cluster_size
    threads = row_threads(clusters * CLUSTERS_OF_BLOCK, spec.max_threads_per_block)
    held = min(CLUSTERS_OF_BLOCK, threads)
    lanes = threads // held
    vectors, n, lead = Vectors.dividing(clusters), operator.rows.extent(), operator.rows.lead
    with function(scheduled=True) as build:
        scores = build.arg("scores", (n, clusters), "float32")
        ordering = build.arg("ordering", (operator.vocab,), "float32")
        tokens = build.arg("tokens", (*lead(n), operator.count), "int32")
        grid = -(-clusters // held), several(operator.rows, n)
        with launch(threads, *grid) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            counts, places = shared((threads,), "int32"), shared((held,), "int32")
            own = bind(index * held + tirx.floordiv(thread, lanes))
            score = read_score(scores, (i,), tirx.min(own, clusters - 1), vectors)
            key = materialize(key_of(score), "uint32")
            before = LocalVar("int32", i32(0))
            sharers = Block(bind(tirx.floormod(thread, lanes)), lanes, 0)
            with strided(sharers, clusters // vectors.size) as group:
                others = vectors.lanes(bind(scores[i, vectors.at(group)]))
                for lane, score in enumerate(others):
                    other = materialize(key_of(score), "uint32")
                    is_lower = group * vectors.size + lane < own
                    precedes = (other > key) | ((other == key) & is_lower)
                    before.add(tirx.Select(precedes, i32(1), i32(0)))
            store(counts, before.value, thread)
            barrier()
            with when(thread < held):
                place = tree([counts[thread * lanes + lane] for lane in range(lanes)], add)
                is_cluster = index * held + thread < clusters
                store(places, tirx.Select(is_cluster, place, i32(operator.top_k)), thread)
            barrier()
            with strided(block, held * size) as item:
                slot, token = bind(tirx.floordiv(item, size)), bind(tirx.floormod(item, size))
                place = bind(places[slot])
                with when(place < operator.top_k):
                    found = ordering[(index * held + slot) * size + token]
                    store(tokens, found.astype("int32"), *lead(i), place * size + token)
    return build.result


def make_candidate_logits(operator: CandidateLogits, spec: TargetSpec) -> tirx.PrimFunc:
    """A group of lanes a candidate, whose row of the head they decode and multiply.

    Grid: count / groups of a block x rows. Shared: one float32 a thread. Reference:
    `CandidateLogits.definition`.
    """
    count, layout, n = operator.count, operator.layout, operator.rows.extent()
    with function(scheduled=True) as build:
        x = build.arg("x", (n, operator.cols), operator.in_dtype)
        tokens = build.arg("tokens", (*operator.rows.lead(n), count), "int32")
        weights = WeightReader(build, layout)
        earlier = build.arg("previous", (n, count), "float32") if operator.accumulate else None
        logits = build.arg("logits", (n, count), "float32")
        lanes = row_threads(weights.units, LANES)
        threads = row_threads(count * lanes, spec.max_threads_per_block)
        held = threads // lanes
        grid = -(-count // held), several(operator.rows, n)
        with launch(threads, *grid) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            lane = bind(tirx.floormod(thread, lanes))
            candidate = bind(index * held + tirx.floordiv(thread, lanes))
            token = row_of(tokens, operator.rows, i)[tirx.min(candidate, count - 1)]
            row = bind(token - operator.row_begin)
            is_inside = bind((row >= 0) & (row < layout.rows))
            total = LocalVar("float32", zero())

            def multiply(split: Sequence[Buffer], begin: int) -> None:
                rows = [row - begin]
                accumulate_rows(
                    weights, split, rows, lambda k: as_f32(x[i, k]), lane, lanes, [total]
                )

            with when(is_inside):
                weights.in_split(row, multiply)
            (logit,) = sum_over_lanes(block, [total.value], lanes)
            with when((lane == 0) & (candidate < count)):
                outside = zero() if earlier is None else earlier[i, candidate]
                store(logits, tirx.Select(is_inside, logit, outside), i, candidate)
    return build.result


def make_best_token(operator: BestToken, spec: TargetSpec) -> tirx.PrimFunc:
    """A block a row: the highest logit, then the lowest id that has it, which float32 holds.

    Shared: a float32 a thread. Reference: `BestToken.definition`.
    """
    count, n = operator.count, operator.rows.extent()
    threads = row_threads(count, spec.max_threads_per_block)
    vectors = Vectors.dividing(count)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (n, count), "float32")
        lead = operator.rows.lead(n)
        tokens = build.arg("tokens", (*lead, count), "int32") if operator.listed else None
        token = build.arg("token", (n,), "int32")

        def ids_at(i: Expr, place: Index) -> list[Expr]:
            assert tokens is not None, "listed"
            own = row_of(tokens, operator.rows, i)
            found = vectors.cast(own[vectors.from_channel(place)], "float32")
            return vectors.lanes(bind(found))

        with launch(threads, 1, several(operator.rows, n)) as (_, i, thread):
            block = Block(thread, threads, spec.simd_width)
            best = _Best(block)
            with strided(block, count // vectors.size) as group:
                place = bind(group * vectors.size)
                ids = None if tokens is None else ids_at(i, place)
                best.see(vectors, OneRow(logits, i), place, ids)
            _, lowest = best.of_block()
            with when(thread == 0):
                first = zero() if tokens is None else ids_at(i, 0)[0]
                found = tirx.Select(lowest < f32(NO_TOKEN), lowest, first)
                store(token, found.astype("int32"), i)
    return build.result


def make_best_token_partials(operator: BestTokenPartials, spec: TargetSpec) -> tirx.PrimFunc:
    """A block a run. Grid: blocks x rows. Shared: a float32 a thread.

    Reference: `BestTokenPartials.definition`.
    """
    count, n, lead = operator.count, operator.rows.extent(), operator.rows.lead
    threads = row_threads(min(count, RUN), spec.max_threads_per_block)
    vectors = Vectors.dividing(count)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (n, count), "float32")
        highest = build.arg("highest", (n, operator.blocks), "float32")
        tokens = build.arg("tokens", (*lead(n), operator.blocks), "int32")
        with launch(threads, operator.blocks, several(operator.rows, n)) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            best, begin = _Best(block), bind(index * RUN)
            with strided(block, min(count, RUN) // vectors.size) as group:
                first = bind(begin + group * vectors.size)
                with when(first < count):
                    best.see(vectors, OneRow(logits, i), first, None)
            top, lowest = best.of_block()
            with when(thread == 0):
                store(highest, top, i, index)
                found = tirx.Select(lowest < f32(NO_TOKEN), lowest.astype("int32"), begin)
                store(tokens, found, *lead(i), index)
    return build.result


class _Best:
    """The highest of the logits that a thread has seen, and the lowest id that has it."""

    def __init__(self, block: Block) -> None:
        self._reduce = BlockReduction(block)
        self._best = LocalVar("float32", f32(LOWEST))
        self._found = LocalVar("float32", f32(NO_TOKEN))

    def see(self, vectors: Vectors, logits: OneRow, first: Expr, ids: list[Expr] | None) -> None:
        """The vector of a row's logits from `first` on; `ids` are float32, or their indices."""
        values = vectors.lanes(bind(logits[vectors.from_channel(first)]))
        for lane, logit in enumerate(values):
            own = bind((first + lane).astype("float32")) if ids is None else ids[lane]
            higher = bind(logit > self._best.value)
            equal = bind(tirx.all(logit == self._best.value, own < self._found.value))
            with when(tirx.any(higher, equal)):
                self._best.set(logit)
                self._found.set(own)

    def of_block(self) -> tuple[Expr, Expr]:
        """Of all threads: the highest logit, and its lowest id or NO_TOKEN where no number was."""
        top = self._reduce(self._best.value, tirx.max)
        candidate = tirx.Select(self._best.value == top, self._found.value, f32(NO_TOKEN))
        return top, self._reduce(candidate, tirx.min)
