"""Candidates of a draft and the best of them. Definitions: operators/drafting.py."""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.drafting import NO_TOKEN, BestToken, CandidateLogits, ClusterTokens
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    strided,
    sum_over_lanes,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.moe.expert_choice import choose
from gemma4_compile.targets.spec import TargetSpec


def make_cluster_tokens(operator: ClusterTokens, spec: TargetSpec) -> tirx.PrimFunc:
    """One block. Shared: a number a chosen cluster. Reference: `ClusterTokens.definition`."""
    clusters, size = operator.clusters, operator.cluster_size
    threads = row_threads(max(clusters, operator.count), spec.max_threads_per_block)
    with function(scheduled=True) as build:
        scores = build.arg("scores", (1, clusters), "float32")
        ordering = build.arg("ordering", (operator.vocab,), "float32")
        tokens = build.arg("tokens", (operator.count,), "int32")
        with launch(threads, 1) as (_, _, thread):
            block = Block(thread, threads, spec.simd_width)
            chosen = choose(block, scores, clusters, operator.top_k)
            with strided(block, operator.count) as item:
                # Scores that are no numbers leave places of `chosen` as they were.
                found = chosen[tirx.floordiv(item, size)]
                cluster = bind(tirx.max(tirx.min(found, clusters - 1), 0))
                place = bind(cluster * size + tirx.floormod(item, size))
                store(tokens, ordering[place].astype("int32"), item)
    return build.result


def make_candidate_logits(operator: CandidateLogits, spec: TargetSpec) -> tirx.PrimFunc:
    """A block a candidate. Grid: count. Reference: `CandidateLogits.definition`."""
    count, width = operator.count, operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (1, width), operator.in_dtype)
        rows = build.arg("rows", (count, width), "float32")
        logits = build.arg("logits", (1, count), "float32")
        with launch(threads, count) as (candidate, _, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            mine = [row_slice.vectors.cast(value, "float32") for value in row_slice.load(x, 0)]
            dot = row_slice.dot(mine, row_slice.load(rows, candidate))
            (total,) = sum_over_lanes(block, [dot], threads)
            with when(thread == 0):
                store(logits, total, 0, candidate)
    return build.result


def make_best_token(operator: BestToken, spec: TargetSpec) -> tirx.PrimFunc:
    """One block: the highest logit, then the lowest id that has it, which float32 holds.

    Shared: a float32 a thread. Reference: `BestToken.definition`.
    """
    count = operator.count
    threads = row_threads(count, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        logits = build.arg("logits", (1, count), "float32")
        tokens = build.arg("tokens", (count,), "int32") if operator.listed else None
        token = build.arg("token", (1,), "int32")
        with launch(threads, 1) as (_, _, thread):
            reduce = BlockReduction(Block(thread, threads, spec.simd_width))
            block = Block(thread, threads, spec.simd_width)
            best, found = LocalVar("float32", f32(LOWEST)), LocalVar("float32", f32(NO_TOKEN))
            with strided(block, count) as item:
                logit = bind(logits[0, item])
                own = bind((item if tokens is None else tokens[item]).astype("float32"))
                higher = bind(logit > best.value)
                equal = bind(tirx.all(logit == best.value, own < found.value))
                with when(tirx.any(higher, equal)):
                    best.set(logit)
                    found.set(own)
            top = reduce(best.value, tirx.max)
            candidate = tirx.Select(best.value == top, found.value, f32(NO_TOKEN))
            lowest = reduce(candidate, tirx.min)
            with when(thread == 0):
                first = i32(0) if tokens is None else tokens[0]
                store(token, tirx.Select(lowest < f32(NO_TOKEN), lowest.astype("int32"), first), 0)
    return build.result
