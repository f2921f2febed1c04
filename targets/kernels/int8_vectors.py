"""Vectors rounded to int8: made from norms, from splits of an attention and from plain vectors.

A thread owns every so many quads, four channels that make one word. Eight neighbouring threads meet
in shared memory to find the largest magnitude of their group. Meaning, and plain forms of the
kernels here: model_spec/operators/int8.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.base import symbolic_rows
from gemma4_compile.model_spec.operators.int8 import (
    GROUP,
    WORD,
    RoundedMerge,
    RoundedNorm,
    RoundRows,
    byte_of,
    group_factor,
    group_scale,
    packed_specs,
    round_half_up,
)
from gemma4_compile.model_spec.operators.math import f32
from gemma4_compile.model_spec.operators.norms import NormVector
from gemma4_compile.model_spec.operators.tir import (
    FunctionBuilder,
    function,
    let,
    store,
    when,
)
from gemma4_compile.targets.kernels.attention_merge import merge_shape, merge_slice
from gemma4_compile.targets.kernels.blocks import (
    add,
    barrier,
    launch,
    row_threads,
    shared,
    strided,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.row_share import RowShare
from gemma4_compile.targets.spec import TargetSpec

QUADS = GROUP // WORD  # of a group
SUM_COLUMNS = 16  # about the square root of a block's threads

Put = Callable[[Any, Any], None]


@contextmanager
def _inside(item: Any, turn: int, threads: int, count: int) -> Iterator[None]:
    """Run the body if a thread's item exists, where some threads have none in this turn."""
    if (turn + 1) * threads > count:
        with when(item < count):
            yield
    else:
        yield


def _lanes(quad: Any) -> list[Any]:
    return [tirx.Shuffle([quad], [lane]) for lane in range(WORD)]


def round_quads(
    quads: Sequence[Any],
    thread: Any,
    threads: int,
    count: int,
    interleaved: bool,
    put_word: Put,
    put_scale: Put,
) -> None:
    """Round a block's share of a vector, all threads together; it ends without a barrier.

    Parameters
    ----------
    quads : float32x4; the thread's quad `turn` is number ``turn * threads + thread`` of `count`
    put_word, put_scale : store a word by its quad, and a scale by its group
    """
    largest = shared((count,))
    for turn, quad in enumerate(quads):
        item = let(thread + turn * threads)
        with _inside(item, turn, threads, count):
            a, b, c, d = (tirx.max(lane, -lane) for lane in _lanes(quad))
            store(largest, tirx.max(tirx.max(a, b), tirx.max(c, d)), item)
    barrier()
    for turn, quad in enumerate(quads):
        item = let(thread + turn * threads)
        with _inside(item, turn, threads, count):
            group = let(tirx.floordiv(item, QUADS))
            magnitude: Any = largest[group * QUADS]
            for other in range(1, QUADS):
                magnitude = tirx.max(magnitude, largest[group * QUADS + other])
            magnitude = let(magnitude)
            factor = let(group_factor(magnitude))
            put_word(item, let(_word([let(lane * factor) for lane in _lanes(quad)], interleaved)))
            with when(tirx.floormod(item, QUADS) == 0):
                put_scale(group, group_scale(magnitude))


def _word(values: Sequence[Any], interleaved: bool) -> Any:
    word: Any = tirx.const(0, "uint32")
    for byte in range(WORD):
        integer = round_half_up(values[byte_of(byte, interleaved)]).astype("uint32")
        lowest = tirx.bitwise_and(integer, tirx.const(255, "uint32"))
        word = tirx.bitwise_or(word, tirx.shift_left(lowest, tirx.const(8 * byte, "uint32")))
    return word


@dataclass
class NormArguments:
    """The buffers of a `NormVector`, in call order."""

    branch: Any
    residual: Any
    w_branch: Any
    scalar: Any
    w_next: Any

    @staticmethod
    def declare(build: FunctionBuilder, norm: NormVector) -> NormArguments:
        """Declare them, right where they stand."""
        width = norm.width
        return NormArguments(
            branch=build.arg("branch", (1, width), "float32"),
            residual=build.arg("residual", (1, width), "float32"),
            w_branch=build.arg("w_branch", (width,), "float32"),
            scalar=build.arg("scalar", (1,), "float32") if norm.scaled else None,
            w_next=build.arg("w_next", (width,), "float32") if norm.normed else None,
        )


def norm_quads(
    norm: NormVector, args: NormArguments, out: Any, writes: Any, thread: Any, threads: int
) -> list[Any]:
    """The thread's quads of x; r' is written to `out` where `writes` holds.

    Everything is read at the start, once, and stays in registers. The block meets once for both
    norms: with c = b * w_branch and the branch's 1 / rms i, the squares of r + i c add up to
    r.r + 2 i r.c + i^2 c.c.
    """
    share = RowShare(thread, threads, norm.width)
    branch, residual = share.load(args.branch, 0), share.load(args.residual, 0)
    w_branch = share.load(args.w_branch)
    w_next = share.load(args.w_next) if norm.normed else []
    scalar = let(args.scalar[0]) if norm.scaled else f32(1.0)
    weighed = share.map(lambda b, w: b * w, branch, w_branch)
    scale, scale_next = _norm_scales(norm, share, branch, residual, weighed, scalar)
    total = share.map(lambda r, c: (r + c * scale) * share.splat(scalar), residual, weighed)
    with when(writes):
        share.store(out, total, 0)
    if not norm.normed:
        return total
    return share.map(lambda value, w: value * scale_next * w, total, w_next)


def _norm_scales(
    norm: NormVector,
    share: RowShare,
    branch: Sequence[Any],
    residual: Sequence[Any],
    weighed: Sequence[Any],
    scalar: Any,
) -> tuple[Any, Any]:
    """1 / rms of the branch and of r', each in all lanes; `weighed` is branch times w_branch."""
    pairs = [(branch, branch), (residual, residual), (residual, weighed), (weighed, weighed)]
    parts = [share.dot(left, right) for left, right in pairs[: WORD if norm.normed else 1]]
    missing = [zero()] * (WORD - len(parts))
    bb, rr, rc, cc = _sum_quad([*parts, *missing], share.thread, share.threads)

    def inverse(squares: Any) -> Any:
        return let(tirx.rsqrt(squares / f32(norm.width) + f32(norm.eps)))

    scale = inverse(bb)
    squares = let(rr + scale * (f32(2.0) * rc + scale * cc))
    scale_next = inverse(tirx.max(squares, zero()) * scalar * scalar) if norm.normed else zero()
    return let(share.splat(scale)), let(share.splat(scale_next))


def _sum_quad(values: Sequence[Any], thread: Any, threads: int) -> list[Any]:
    """Sum four float32 of every thread over the block: every thread gets the four sums."""
    columns = min(threads, SUM_COLUMNS)
    assert threads % columns == 0, "columns of equal length"
    every, row = shared((threads * WORD,)), shared((columns * WORD,))

    def at(item: Any) -> Any:
        return T.ramp(item * WORD, 1, WORD)

    store(every, tirx.Shuffle([let(value) for value in values], list(range(WORD))), at(thread))
    barrier()
    with when(thread < columns):
        steps = range(threads // columns)
        store(row, tree([every[at(step * columns + thread)] for step in steps], add), at(thread))
    barrier()
    return [
        let(lane) for lane in _lanes(let(tree([row[at(item)] for item in range(columns)], add)))
    ]


def merge_quads(sums: Any, stats: Any, heads: int, thread: Any, threads: int) -> list[Any]:
    """The thread's quads of all merged heads; ends without a barrier.

    All loads are under way before the first is used. Each (head, split) has one weight, made once
    by one thread.
    """
    splits, dim = int(sums.shape[0]), int(sums.shape[2])
    per_head, count = dim // WORD, heads * dim // WORD
    quads = []
    for turn in range(-(-count // threads)):
        item = let(tirx.min(thread + turn * threads, count - 1))
        head = let(tirx.floordiv(item, per_head))
        column = T.ramp(tirx.floormod(item, per_head) * WORD, 1, WORD)
        quads.append((head, [let(sums[s, head, column]) for s in range(splits)]))
    weights = shared((heads * splits,))
    with strided(thread, threads, heads * splits) as item:
        h, own = let(tirx.floordiv(item, splits)), let(tirx.floormod(item, splits))
        pairs = [(let(stats[s, h, 0]), let(stats[s, h, 1])) for s in range(splits)]
        highest = pairs[0][0]
        for other, _ in pairs[1:]:
            highest = tirx.max(highest, other)
        highest = let(highest)
        total = tree([tirx.exp(maximum - highest) * weight for maximum, weight in pairs], add)
        store(weights, tirx.exp(stats[own, h, 0] - highest) / total, item)
    barrier()
    merged = []
    for head, values in quads:
        shares = [tirx.Broadcast(let(weights[head * splits + s]), WORD) for s in range(splits)]
        products = [share * value for share, value in zip(shares, values, strict=True)]
        merged.append(let(tree(products, add)))
    return merged


def float_quads(x: Any, width: int, thread: Any, threads: int) -> list[Any]:
    """The thread's quads of a vector (1, width)."""
    share = RowShare(thread, threads, width)
    return [let(quad.astype(f"float32x{WORD}")) for quad in share.load(x, 0)]


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

            round_quads([quad], thread, threads, threads, operator.interleaved, put_word, put_scale)
    return build.result


def make_rounded_norm(operator: RoundedNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block adds up the squares of the whole row, and rounds a quad a thread.

    Grid: quads / threads. Shared: a vector a thread. Reference: `RoundedNorm.plain`.
    """
    norm, width, quads = operator.norm, operator.width, operator.width // WORD
    threads = row_threads(quads, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = NormArguments.declare(build, norm)
        out = build.arg("out", (1, width), "float32")
        words, scales = (
            build.arg(name, *shape)
            for name, shape in zip(("words", "scales"), packed_specs(width), strict=True)
        )
        with launch(threads, -(-quads // threads)) as (block, _, thread):
            share = RowShare(thread, threads, width)
            item = let(block * threads + thread)
            place = T.ramp(let(tirx.min(item, quads - 1)) * WORD, 1, WORD)
            w_next = let(args.w_next[place])
            own_branch = let(args.branch[0, place] * args.w_branch[place])
            own_residual = let(args.residual[0, place])
            branch, residual = share.load(args.branch, 0), share.load(args.residual, 0)
            scalar = let(args.scalar[0]) if norm.scaled else f32(1.0)
            weighed = share.map(lambda b, w: b * w, branch, share.load(args.w_branch))
            scale, scale_next = _norm_scales(norm, share, branch, residual, weighed, scalar)
            total = let((own_residual + own_branch * scale) * share.splat(scalar))
            with when(item < quads):
                store(out, total, 0, place)

            def put_word(quad: Any, word: Any) -> None:
                with when(block * threads + quad < quads):
                    store(words, word, 0, block * threads + quad)

            def put_scale(group: Any, scale: Any) -> None:
                with when((block * threads + group * QUADS) < quads):
                    store(scales, scale, 0, block * (threads // QUADS) + group)

            x = let(total * scale_next * w_next)
            round_quads([x], thread, threads, threads, operator.interleaved, put_word, put_scale)
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
        sums = build.arg("sums", (splits, heads, dim), "float32")
        stats = build.arg("stats", (splits, heads, 2), "float32")
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

            merged = let(merge_slice(shape, sums, stats, head, slice_, thread))
            round_quads(
                [merged], thread, shape.threads, width, operator.interleaved, put_word, put_scale
            )
    return build.result
