"""Norms around experts: a block a row.

Definitions: gemma4_compile/operators/few_row_expert_norms.py and norms.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_expert_norms import (
    QuantizedBranchNorms,
)
from gemma4_compile.operators.moe import BRANCH_NORM, DENSE_NORM, EXPERT_NORM, VECTORS
from gemma4_compile.operators.norms import ExpertNormVector, NormVector, ResidualNorm
from gemma4_compile.operators.tir import FunctionBuilder, bind, function, i32
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockSums,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.linear.quantize_rows import norm_threads
from gemma4_compile.targets.kernels.prologues.expert_norms import (
    EXPERT_SUMS,
    ExpertNormArguments,
    expert_norm,
)
from gemma4_compile.targets.kernels.prologues.packed_rows import (
    if_there_is,
    packed_results,
    store_rounded,
    written_rows,
)
from gemma4_compile.targets.kernels.prologues.router_blocks import RoutedNormArguments
from gemma4_compile.targets.kernels.prologues.vectors import NormArguments, norms_at_once
from gemma4_compile.targets.spec import TargetSpec

AFTER = (DENSE_NORM, EXPERT_NORM)  # norms of the residual after attention, and its norm


def make_quantized_branch_norms(operator: QuantizedBranchNorms, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_quantized_few_row_norm` with two normed results, and their rounding.

    Grid: rows. Shared: a vector a thread, and a float32 a vec4. Definition: `QuantizedBranchNorms`.
    """
    width, n = operator.width, symbolic_rows(None)
    threads = row_threads(width // WORD, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        y = build.arg("y", (n, width), "float32")
        residual = build.arg("residual", (n, width), "float32")
        vectors = build.arg("vectors", (VECTORS, width), "float32")
        out, *packed = _branch_results(build, width, n)
        with launch(threads, n) as (i, _, thread):
            first, *after = (StackRow(vectors, row) for row in (BRANCH_NORM, *AFTER))
            norm = NormVector(width, operator.eps, scaled=False, normed=True)
            args = NormArguments(norm, y, residual, first, scalar=None, w_next=None)
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            _norm_branches(operator, args, after, out, packed, row_slice, i)
    return build.result


def make_routed_branch_norms(operator: QuantizedBranchNorms, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_quantized_branch_norms`, and blocks for each row that make some experts' scores.

    A block that scores knows the row's norm from sums of its own (router_blocks.py). Grid: 1 +
    experts / those of a block x rows. Shared: as there, and two vectors a thread. Definition:
    `QuantizedBranchNorms`.
    """
    width, n = operator.width, symbolic_rows(None)
    threads = row_threads(width // WORD, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        router = RoutedNormArguments(build, operator.routed_norm, n)
        out, *packed = _branch_results(build, width, n)
        scores = build.arg("scores", (n, operator.experts), "float32")
        own = min(spec.tuning.few_rows.scores, operator.experts)
        blocks, last = -(-operator.experts // own), operator.experts - 1
        with launch(threads, 1 + blocks, n) as (index, i, thread):
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            # Loops of one iteration or none, as of `behind_router`.
            scores_row = bind(tirx.Select(index > 0, i32(1), i32(0)))
            with T.serial(0, scores_row):
                first = bind((index - 1) * own)
                experts = [bind(tirx.min(first + other, last)) for other in range(own)]
                router.store_scores(scores, i, experts, row_slice)
            with T.serial(0, i32(1) - scores_row):
                args, after = router.norm_to(*AFTER)
                _norm_branches(operator, args, after, out, packed, row_slice, i)
    return build.result


def _branch_results(build: FunctionBuilder, width: int, n: Index) -> list[Buffer]:
    """R', then words and scales for the dense branch and for the experts."""
    out = build.arg("out", (n, width), "float32")
    return [out, *packed_results(build, width, n), *packed_results(build, width, n, "_experts")]


def _norm_branches(
    operator: QuantizedBranchNorms,
    args: NormArguments,
    after: Sequence[StackRow],
    out: Buffer,
    packed: Sequence[Buffer],
    row_slice: RowSlice,
    i: Expr,
) -> None:
    """Row i of all results."""
    _, normed = norms_at_once(args, after, out, row_slice, i)
    orders = operator.interleaved, operator.experts_interleaved
    for index, (values, order) in enumerate(zip(normed, orders, strict=True)):
        store_rounded(packed[2 * index : 2 * index + 2], i, row_slice, values, order)


def make_expert_residual_norm(operator: ResidualNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Everything is read once, at the start: one block's time is the latency of its loads.

    With `top_k` the experts' outputs are added up as they are read. Grid: rows, of tiles all.
    Shared: two vectors a thread, and a float32 a vec4 if packed. Reference: `ResidualNorm`.
    """
    n, width, output, norm = (
        operator.rows.extent(),
        operator.width,
        operator.output,
        operator.vector,
    )
    assert isinstance(norm, ExpertNormVector), "chosen for two branches"
    threads = (
        norm_threads(width, spec)
        if operator.packs
        else row_threads(width, spec.max_threads_per_block)
    )
    with function(scheduled=True) as build:
        args = ExpertNormArguments.declare(build, norm, n)
        out = build.arg("out", (n, width), "float32")
        if isinstance(output, PackedOutput):
            results = packed_results(build, width, n, tiled=output.tiled)
        else:
            results = [build.arg("hidden", (n, width), operator.next_dtype or "float32")]
        first = results[0]
        with launch(threads, written_rows(n, first)) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            with if_there_is(i, n, first, block, width // WORD):
                normed = expert_norm(args, out, None, row_slice, BlockSums(block, EXPERT_SUMS), i)
                if isinstance(output, PackedOutput):
                    store_rounded(results, i, row_slice, normed, output.interleaved)
                else:
                    row_slice.store(first, normed, i)
    return build.result
