"""Kernels that round vectors to int8 and do nothing else, or the norm or combine in front of it.

Definitions: gemma4_compile/operators/activation_quantization.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import (
    WORD,
    QuantizeRows,
)
from gemma4_compile.operators.activations import packed_of
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import NormVector, ResidualNorm
from gemma4_compile.operators.tir import bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    REDUCTION_COLUMNS,
    Block,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.prologues.expert_norms import ExpertNormArguments
from gemma4_compile.targets.kernels.prologues.packed_rows import (
    if_there_is,
    packed_results,
    store_rounded,
    store_run,
    written_rows,
)
from gemma4_compile.targets.kernels.prologues.vectors import (
    VEC4S,
    NormArguments,
    declare_norm,
    norm_scales,
    norm_squares,
    norm_vec4s,
    norms_at_once,
    round_vec4s,
)
from gemma4_compile.targets.spec import TargetSpec


def make_quantize_rows(operator: QuantizeRows, spec: TargetSpec) -> tirx.PrimFunc:
    """A vec4 a thread.

    Grid: vec4s of a row / threads x rows. Shared: a float32 a thread. Definition: `QuantizeRows`.
    """
    rows, width, output = operator.rows.extent(), operator.width, operator.output
    vec4s = width // WORD
    threads = row_threads(vec4s, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), operator.in_dtype)
        packed = packed_results(build, width, rows, tiled=output.tiled)
        grid = -(-vec4s // threads), written_rows(rows, packed[0])
        with launch(threads, *grid) as (index, i, thread):
            block = Block(thread, threads, spec.simd_width)
            first = bind(index * threads)
            item = bind(tirx.min(first + thread, vec4s - 1))

            put_word, put_scale = store_run(packed, i, first, vec4s)
            with if_there_is(i, rows, packed[0], block, threads, put_word):
                vec4 = bind(x[i, T.ramp(item * WORD, 1, WORD)].astype(f"float32x{WORD}"))
                round_vec4s([vec4], block, threads, output.interleaved, put_word, put_scale)
    return build.result


def _own_vec4(
    args: NormArguments,
    out: Buffer,
    index: Expr,
    block: Block,
) -> Expr:
    """The thread's vec4 of x; its vec4 of r' is written."""
    assert args.w_next is not None, "what is rounded is normed"
    norm, width, vec4s = args.norm, args.norm.width, args.norm.width // WORD
    row_slice = RowSlice(block, width)
    item = bind(index * block.threads + block.thread)
    place = T.ramp(bind(tirx.min(item, vec4s - 1)) * WORD, 1, WORD)
    w_next = bind(args.w_next[place])
    own_branch = bind(args.branch[0, place] * args.w_branch[place])
    own_residual = bind(args.residual[0, place])
    branch, residual = row_slice.load(args.branch, 0), row_slice.load(args.residual, 0)
    scalar = bind(args.scalar[0]) if args.scalar is not None else f32(1.0)
    weighed = row_slice.map(lambda b, w: b * w, branch, row_slice.load(args.w_branch))
    squares = norm_squares(norm, row_slice, branch, residual, weighed)
    scale, scale_next = norm_scales(norm, row_slice, squares, scalar)
    total = bind((own_residual + own_branch * scale) * row_slice.splat(scalar))
    with when(item < vec4s):
        store(out, total, 0, place)
    return bind(total * scale_next * w_next)


def _own_vec4_behind_experts(
    args: ExpertNormArguments,
    out: Buffer,
    index: Expr,
    block: Block,
) -> Expr:
    """The thread's vec4 of x, in the block's step of its slice; the first block writes r'."""
    x = norm_vec4s(args, out, index == 0, block)
    own = x[0]
    for iteration, vec4 in enumerate(x[1:], 1):
        own = bind(tirx.Select(index == iteration, vec4, own))
    return own


def make_quantized_norm(operator: ResidualNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block adds up the squares of the whole row, and rounds a vec4 a thread.

    Grid: vec4s / threads. Shared: a vector a thread, two after two branches. Reference:
    `ResidualNorm.definition`.
    """
    width, vec4s, output = operator.width, operator.width // WORD, packed_of(operator.output)
    threads = row_threads(vec4s, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = declare_norm(build, operator.vector)
        out = build.arg("out", (1, width), "float32")
        words, scales = packed_results(build, width, 1)
        with launch(threads, -(-vec4s // threads)) as (index, _, thread):
            block = Block(thread, threads, spec.simd_width)
            if isinstance(args, ExpertNormArguments):
                x = _own_vec4_behind_experts(args, out, index, block)
            else:
                x = _own_vec4(args, out, index, block)

            def put_word(vec4: Expr, word: Expr) -> None:
                with when(index * threads + vec4 < vec4s):
                    store(words, word, 0, index * threads + vec4)

            def put_scale(group: Expr, scale: Expr) -> None:
                with when((index * threads + group * VEC4S) < vec4s):
                    store(scales, scale, 0, index * (threads // VEC4S) + group)

            round_vec4s(
                [x],
                block,
                threads,
                output.interleaved,
                put_word,
                put_scale,
            )
    return build.result


def norm_threads(width: int, spec: TargetSpec) -> int:
    """Threads of a block for the norm of a row: all with as many vec4s, where a target says so."""
    most, vec4s = spec.tuning.few_rows.norm_threads, width // WORD
    if not most:
        return row_threads(vec4s, spec.max_threads_per_block)
    most = min(most, spec.max_threads_per_block, REDUCTION_COLUMNS * spec.simd_width)
    each = -(-vec4s // most)
    return -(-vec4s // (each * spec.simd_width)) * spec.simd_width


def make_quantized_few_row_norm(operator: ResidualNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """The norms of `make_quantized_norm`, of each row, and their rounding.

    Grid: rows, of tiles all. Shared: a vector a thread, and a float32 a vec4. Definition:
    `ResidualNorm`.
    """
    width, n, output = operator.width, operator.rows.extent(), packed_of(operator.output)
    threads = norm_threads(width, spec)
    with function(scheduled=True) as build:
        assert isinstance(operator.vector, NormVector), "chosen for one branch"
        args = NormArguments.declare(build, operator.vector, n)
        out = build.arg("out", (n, width), "float32")
        packed = packed_results(build, width, n, tiled=output.tiled)
        with launch(threads, written_rows(n, packed[0])) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            row_slice = RowSlice(block, width)
            nexts = [] if args.w_next is None else [args.w_next]
            with if_there_is(i, n, packed[0], block, width // WORD):
                total, normed = norms_at_once(args, nexts, out, row_slice, i)
                store_rounded(
                    packed, i, row_slice, normed[0] if normed else total, output.interleaved
                )
    return build.result
