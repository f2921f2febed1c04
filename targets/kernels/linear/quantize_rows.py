"""Kernels that round vectors to int8 and do nothing else, or the norm or merge in front of it.

Plain forms: gemma4_compile/operators/activation_quantization.py.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import (
    WORD,
    RoundedMerge,
    RoundedNorm,
    RoundRows,
    packed_specs,
)
from gemma4_compile.operators.attention import declare_splits
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import ExpertNormVector, NormVector
from gemma4_compile.operators.tir import function, let, store, when
from gemma4_compile.targets.kernels.attention.combine import merge_shape, merge_slice
from gemma4_compile.targets.kernels.common.blocks import launch, row_threads
from gemma4_compile.targets.kernels.common.row_slice import RowShare
from gemma4_compile.targets.kernels.linear.int8_vectors import (
    QUADS,
    NormArguments,
    declare_norm,
    norm_quads,
    norm_scales,
    norm_squares,
    round_quads,
)
from gemma4_compile.targets.kernels.moe.expert_norms import ExpertNormArguments
from gemma4_compile.targets.spec import TargetSpec


def make_round_rows(operator: RoundRows, spec: TargetSpec) -> tirx.PrimFunc:
    """A quad a thread.

    Grid: quads of a row / threads x rows. Shared: a float32 a thread. Reference: `RoundRows.plain`.
    """
    rows, width = symbolic_rows(operator.rows), operator.width
    quads = width // WORD
    threads = row_threads(quads, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), operator.in_dtype)
        words, scales = (
            build.arg(name, *shape)
            for name, shape in zip(("words", "scales"), packed_specs(width, rows), strict=True)
        )
        with launch(threads, -(-quads // threads), rows) as (block, i, thread):
            first = let(block * threads)
            item = let(tirx.min(first + thread, quads - 1))
            quad = let(x[i, T.ramp(item * WORD, 1, WORD)].astype(f"float32x{WORD}"))

            def put_word(mine: Any, word: Any) -> None:
                with when(first + mine < quads):
                    store(words, word, i, first + mine)

            def put_scale(group: Any, scale: Any) -> None:
                with when(first + group * QUADS < quads):
                    store(scales, scale, i, tirx.floordiv(first, QUADS) + group)

            round_quads(
                [quad],
                thread,
                threads,
                threads,
                operator.interleaved,
                put_word,
                put_scale,
                spec.simd_width,
            )
    return build.result


def _own_quad(
    norm: NormVector,
    args: NormArguments,
    out: Any,
    block: Any,
    thread: Any,
    threads: int,
    spec: TargetSpec,
) -> Any:
    """The thread's quad of x; its quad of r' is written."""
    width, quads = norm.width, norm.width // WORD
    share = RowShare(thread, threads, width)
    item = let(block * threads + thread)
    place = T.ramp(let(tirx.min(item, quads - 1)) * WORD, 1, WORD)
    w_next = let(args.w_next[place])
    own_branch = let(args.branch[0, place] * args.w_branch[place])
    own_residual = let(args.residual[0, place])
    branch, residual = share.load(args.branch, 0), share.load(args.residual, 0)
    scalar = let(args.scalar[0]) if norm.scaled else f32(1.0)
    weighed = share.map(lambda b, w: b * w, branch, share.load(args.w_branch))
    squares = norm_squares(norm, share, branch, residual, weighed, spec.simd_width)
    scale, scale_next = norm_scales(norm, share, squares, scalar)
    total = let((own_residual + own_branch * scale) * share.splat(scalar))
    with when(item < quads):
        store(out, total, 0, place)
    return let(total * scale_next * w_next)


def _own_quad_behind_experts(
    norm: ExpertNormVector,
    args: ExpertNormArguments,
    out: Any,
    block: Any,
    thread: Any,
    threads: int,
    spec: TargetSpec,
) -> Any:
    """The thread's quad of x, the block's turn of its share; the first block writes r'."""
    x = norm_quads(norm, args, out, block == 0, thread, threads, spec.simd_width)
    own = x[0]
    for turn, quad in enumerate(x[1:], 1):
        own = let(tirx.Select(block == turn, quad, own))
    return own


def make_rounded_norm(operator: RoundedNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block adds up the squares of the whole row, and rounds a quad a thread.

    Grid: quads / threads. Shared: a vector a thread, two behind two branches. Reference:
    `RoundedNorm.plain`.
    """
    norm, width, quads = operator.norm, operator.width, operator.width // WORD
    threads = row_threads(quads, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = declare_norm(build, norm)
        out = build.arg("out", (1, width), "float32")
        words, scales = (
            build.arg(name, *shape)
            for name, shape in zip(("words", "scales"), packed_specs(width), strict=True)
        )
        with launch(threads, -(-quads // threads)) as (block, _, thread):
            if isinstance(norm, ExpertNormVector):
                x = _own_quad_behind_experts(norm, args, out, block, thread, threads, spec)
            else:
                x = _own_quad(norm, args, out, block, thread, threads, spec)

            def put_word(quad: Any, word: Any) -> None:
                with when(block * threads + quad < quads):
                    store(words, word, 0, block * threads + quad)

            def put_scale(group: Any, scale: Any) -> None:
                with when((block * threads + group * QUADS) < quads):
                    store(scales, scale, 0, block * (threads // QUADS) + group)

            round_quads(
                [x],
                thread,
                threads,
                threads,
                operator.interleaved,
                put_word,
                put_scale,
                spec.simd_width,
            )
    return build.result


def make_rounded_merge(operator: RoundedMerge, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_merge_splits`, and the rounding. Shared: also a float32 a quad of a slice.

    Reference: `RoundedMerge.plain`.
    """
    heads, dim, splits = operator.heads, operator.head_dim, operator.splits
    shape = merge_shape(dim, splits, spec)
    width, quads = shape.width, dim // WORD
    assert width % QUADS == quads % QUADS == 0, "a slice holds whole groups"
    with function(scheduled=True) as build:
        means, stats = declare_splits(build, operator, operator.in_dtype)
        words, scales = (
            build.arg(name, *shape)
            for name, shape in zip(("words", "scales"), packed_specs(heads * dim), strict=True)
        )
        with launch(shape.threads, heads, shape.slices) as (head, slice_, thread):
            first = let(head * quads + slice_ * width)
            end = let((head + 1) * quads)

            def put_word(quad: Any, word: Any) -> None:
                with when(first + quad < end):
                    store(words, word, 0, first + quad)

            def put_scale(group: Any, scale: Any) -> None:
                with when(first + group * QUADS < end):
                    store(scales, scale, 0, tirx.floordiv(first, QUADS) + group)

            merged = let(merge_slice(shape, means, stats, head, slice_, thread))
            round_quads(
                [merged],
                thread,
                shape.threads,
                width,
                operator.interleaved,
                put_word,
                put_scale,
                spec.simd_width,
            )
    return build.result
