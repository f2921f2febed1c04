"""Norm and combine of a few rows, which round their result to int8 in the same launch.

Definitions: gemma4_compile/operators/activation_quantization.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.activation_quantization import (
    WORD,
    QuantizedCombine,
    QuantizedNorm,
    quantized_specs,
)
from gemma4_compile.operators.attention_splits import declare_row_splits
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.norms import NormVector
from gemma4_compile.operators.tir import FunctionBuilder, bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    REDUCTION_COLUMNS,
    Block,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import OneRow, RowSlice
from gemma4_compile.targets.kernels.prologues.packed_rows import (
    if_there_is,
    store_word,
    written_rows,
)
from gemma4_compile.targets.kernels.prologues.splits import combine_shape, combine_slice
from gemma4_compile.targets.kernels.prologues.vectors import (
    VEC4S,
    NormArguments,
    norms_at_once,
    round_vec4s,
)
from gemma4_compile.targets.spec import TargetSpec


def packed_results(
    build: FunctionBuilder, width: int, rows: Index, suffix: str = "", tiled: bool = False
) -> list[Buffer]:
    """Declare the packed result."""
    specs = zip(("words", "scales"), quantized_specs(width, rows, tiled), strict=True)
    return [build.arg(name + suffix, *spec) for name, spec in specs]


def matmul_results(
    build: FunctionBuilder, name: str, shape: tuple[Index, int], packs: bool, tiled: bool = False
) -> list[Buffer]:
    """Declare a matmul's result: words and scales where it is packed, else float32."""
    rows, width = shape
    if not packs:
        return [build.arg(name, shape, "float32")]
    return packed_results(build, width, rows, tiled=tiled)


def store_rounded(
    packed: Sequence[Buffer], i: Expr, row_slice: RowSlice, values: Sequence[Expr], order: bool
) -> None:
    """Round a block's slice of row i, by fours of channels, into words and scales."""
    words, scales = packed
    round_vec4s(
        values,
        row_slice.block,
        row_slice.width // WORD,
        order,
        lambda vec4, word: store_word(words, word, i, vec4),
        lambda group, own: store(scales, own, i, group),
    )


def norm_threads(width: int, spec: TargetSpec) -> int:
    """Threads of a block for the norm of a row: all with as many vec4s, where a target says so."""
    most, vec4s = spec.tuning.few_rows.norm_threads, width // WORD
    if not most:
        return row_threads(vec4s, spec.max_threads_per_block)
    most = min(most, spec.max_threads_per_block, REDUCTION_COLUMNS * spec.simd_width)
    each = -(-vec4s // most)
    return -(-vec4s // (each * spec.simd_width)) * spec.simd_width


def make_quantized_few_row_norm(operator: QuantizedNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """The norms of `make_quantized_norm`, of each row, and their rounding.

    Grid: rows, of tiles all. Shared: a vector a thread, and a float32 a vec4. Definition:
    `QuantizedNorm`.
    """
    width, n = operator.width, symbolic_rows(None)
    threads = norm_threads(width, spec)
    with function(scheduled=True) as build:
        norm = NormVector(width, operator.eps, operator.scaled, operator.normed)
        args = NormArguments.declare(build, norm, n)
        out = build.arg("out", (n, width), "float32")
        packed = packed_results(build, width, n, tiled=operator.tiled)
        with launch(threads, written_rows(n, packed[0])) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            nexts = [] if args.w_next is None else [args.w_next]
            with if_there_is(i, n, packed[0], block, width // WORD):
                total, normed = norms_at_once(args, nexts, out, row_slice, i)
                store_rounded(
                    packed, i, row_slice, normed[0] if normed else total, operator.interleaved
                )
    return build.result


def make_quantized_few_row_combine(operator: QuantizedCombine, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_quantized_combine` for each row.

    Grid: heads * slices of channels x rows, of tiles all. Definition: `QuantizedCombine`.
    """
    heads, dim, n = operator.heads, operator.head_dim, symbolic_rows(None)
    shape = combine_shape(dim, operator.splits, spec)
    width, vec4s = shape.width, dim // WORD
    assert width % VEC4S == vec4s % VEC4S == 0, "a slice holds whole groups"
    with function(scheduled=True) as build:
        o_partial, split_lse = declare_row_splits(build, operator, n, operator.in_dtype)
        words, scales = packed_results(build, heads * dim, n, tiled=operator.tiled)
        rows = written_rows(n, words)
        with launch(shape.threads, heads * shape.slices, rows) as (part, i, thread):
            block = Block(thread, shape.threads, spec.simd_width)
            head = bind(tirx.floordiv(part, shape.slices))
            slice_ = bind(tirx.floormod(part, shape.slices))
            first, end = bind(head * vec4s + slice_ * width), bind((head + 1) * vec4s)

            def put_word(vec4: Expr, word: Expr) -> None:
                with when(first + vec4 < end):
                    store_word(words, word, i, first + vec4)

            def put_scale(group: Expr, scale: Expr) -> None:
                with when(first + group * VEC4S < end):
                    store(scales, scale, i, tirx.floordiv(first, VEC4S) + group)

            own = OneRow(o_partial, i), OneRow(split_lse, i)
            with if_there_is(i, n, words, block, width, put_word):
                combined = bind(combine_slice(shape, *own, head, slice_, thread))
                round_vec4s([combined], block, width, operator.interleaved, put_word, put_scale)
    return build.result
