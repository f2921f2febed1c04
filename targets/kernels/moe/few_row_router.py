"""The router of a few rows: scores by blocks of a row and an expert, then a row's choice.

Definitions: gemma4_compile/operators/few_row_router.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_router import FewRowRouterScores, FewRowTopKExperts
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.moe import EXPERT_NORM, SCALE, VECTORS
from gemma4_compile.operators.tir import bind, function, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    inverse_rms,
    launch,
    row_threads,
    shared,
    strided,
    sum_over_lanes,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.moe.expert_choice import choose
from gemma4_compile.targets.kernels.moe.router import store_choice
from gemma4_compile.targets.spec import TargetSpec


def make_few_row_router_scores(operator: FewRowRouterScores, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_router_scores` of each row; the blocks of the first expert write the normed row.

    Grid: experts, rows. Shared: two float32 a thread. Reference: `FewRowRouterScores.definition`.
    """
    n, width, experts = symbolic_rows(None), operator.width, operator.experts
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (n, width), "float32")
        vectors = build.arg("vectors", (VECTORS, width), "float32")
        projection = build.arg("projection", (experts, width), operator.weight_dtype)
        scores = build.arg("scores", (n, experts), "float32")
        dtype = operator.hidden_dtype
        hidden = None if dtype is None else build.arg("hidden", (n, width), dtype)
        with launch(threads, experts, n) as (e, i, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            mine = row_slice.load(x, i)
            row = [
                row_slice.vectors.cast(value, "float32") for value in row_slice.load(projection, e)
            ]
            scale = row_slice.load(StackRow(vectors, SCALE))
            scaled = row_slice.map(lambda a, b: a * b, mine, scale)
            parts = [row_slice.dot(mine, mine), row_slice.dot(scaled, row)]
            squares, dot = (bind(total) for total in sum_over_lanes(block, parts, threads))
            inverse = inverse_rms(squares, width, operator.eps)
            with when(thread == 0):
                store(scores, dot * (inverse * f32(operator.factor)), i, e)
            if hidden is not None:
                with when(e == 0):
                    splat, norm = row_slice.splat(inverse), StackRow(vectors, EXPERT_NORM)
                    weights = row_slice.load(norm)
                    normed = row_slice.map(lambda a, b: a * splat * b, mine, weights)
                    row_slice.store(hidden, normed, i)
    return build.result


def make_few_row_top_k_experts(operator: FewRowTopKExperts, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_top_k_experts`, a block a row.

    Grid: rows. Shared: a float32 an expert, an id for each chosen one. Reference:
    `FewRowTopKExperts.definition`.
    """
    n, experts, top_k = symbolic_rows(None), operator.experts, operator.top_k
    threads = row_threads(experts, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        given = build.arg("scores", (n, experts), "float32")
        expert_scale = build.arg("expert_scale", (experts,), "float32")
        ids = build.arg("ids", (n, top_k), "int32")
        weights = build.arg("weights", (n, top_k), "float32")
        with launch(threads, n) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            scores = shared((experts,))
            with strided(block, experts) as e:
                store(scores, given[i, e], e)
            barrier()
            chosen = choose(block, scores, experts, top_k)

            def score_of(e: Expr) -> Expr:
                return scores[e]

            store_choice(block, chosen, top_k, score_of, expert_scale, ids, weights, i)
    return build.result
