"""Norms around the experts of a few rows: a block a row.

Definitions: gemma4_compile/operators/few_row_expert_norms.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_expert_norms import FewRowExpertNorm, QuantizedBranchNorms
from gemma4_compile.operators.int8_linear import PACKED
from gemma4_compile.operators.moe import BRANCH_NORM, DENSE_NORM, EXPERT_NORM, VECTORS
from gemma4_compile.operators.norms import ExpertNormVector, NormVector
from gemma4_compile.operators.tir import function
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockSums,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.linear.few_row_quantize import packed_results, store_rounded
from gemma4_compile.targets.kernels.linear.int8_vectors import NormArguments, norms_at_once
from gemma4_compile.targets.kernels.moe.expert_norms import (
    EXPERT_SUMS,
    ExpertNormArguments,
    expert_norm,
)
from gemma4_compile.targets.spec import TargetSpec


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
        out = build.arg("out", (n, width), "float32")
        dense = packed_results(build, width, n)
        experts = packed_results(build, width, n, "_experts")
        with launch(threads, n) as (i, _, thread):
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            numbers = (BRANCH_NORM, DENSE_NORM, EXPERT_NORM)
            first, *after = (StackRow(vectors, number) for number in numbers)
            norm = NormVector(width, operator.eps, scaled=False, normed=True)
            args = NormArguments(norm, y, residual, first, scalar=None, w_next=None)
            _, normed = norms_at_once(args, after, out, row_slice, i)
            orders = operator.interleaved, operator.experts_interleaved
            for packed, values, order in zip((dense, experts), normed, orders, strict=True):
                store_rounded(packed, i, row_slice, values, order)
    return build.result


def make_few_row_expert_norm(operator: FewRowExpertNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_expert_residual_norm`, which adds the experts' outputs up as it reads them.

    Grid: rows. Shared: two vectors a thread, and a float32 a vec4 if packed. Definition:
    `FewRowExpertNorm`.
    """
    n, width, is_packed = symbolic_rows(None), operator.width, operator.next_dtype == PACKED
    fours = width // WORD if is_packed else width
    threads = row_threads(fours, spec.max_threads_per_block)
    norm = ExpertNormVector(width, operator.eps)
    with function(scheduled=True) as build:
        args = ExpertNormArguments.declare(build, norm, n, operator.top_k)
        out = build.arg("out", (n, width), "float32")
        packed = packed_results(build, width, n) if is_packed else []
        hidden = None if packed else build.arg("hidden", (n, width), operator.next_dtype)
        with launch(threads, n) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            normed = expert_norm(args, out, None, row_slice, BlockSums(block, EXPERT_SUMS), i)
            if hidden is not None:
                row_slice.store(hidden, normed, i)
            else:
                store_rounded(packed, i, row_slice, normed, operator.interleaved)
    return build.result
