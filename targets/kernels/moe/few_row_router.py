"""The router's scores of a few rows; a row's choice is made as that of one position (router.py).

Definitions: gemma4_compile/operators/few_row_router.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_router import FewRowRouterScores
from gemma4_compile.operators.moe import EXPERT_NORM, VECTORS
from gemma4_compile.operators.tir import function, when
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.moe.router import store_score
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
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            mine = row_slice.load(x, i)
            inverse = store_score(operator, row_slice, mine, vectors, projection, scores, i, e)
            if hidden is not None:
                with when(e == 0):
                    splat, norm = row_slice.splat(inverse), StackRow(vectors, EXPERT_NORM)
                    weights = row_slice.load(norm)
                    normed = row_slice.map(lambda a, b: a * splat * b, mine, weights)
                    row_slice.store(hidden, normed, i)
    return build.result
