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

from gemma4_compile.model_spec.operators.int8 import (
    GROUP,
    WORD,
    NormVector,
    RoundedMerge,
    RoundedNorm,
    byte_of,
    group_factor,
    group_scale,
    packed_specs,
    round_half_up,
)
from gemma4_compile.model_spec.operators.math import f32
from gemma4_compile.model_spec.operators.tir import (
    Cell,
    FunctionBuilder,
    function,
    let,
    store,
    when,
)
from gemma4_compile.targets.kernels.attention_merge import merge_shape, merge_slice
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    barrier,
    launch,
    local,
    row_threads,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.row_share import RowShare
from gemma4_compile.targets.spec import TargetSpec

QUADS = GROUP // WORD  # of a group

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
    """The thread's quads of x; r' is written to `out` where `writes` holds (None: always).

    Everything is read at the start, once, and stays in registers.
    """
    reduce, share = BlockReduction(thread, threads), RowShare(thread, threads, norm.width)

    def inverse(quads: Sequence[Any]) -> Any:
        squares = reduce(share.dot(quads, quads))
        return share.splat(let(tirx.rsqrt(squares / f32(norm.width) + f32(norm.eps))))

    branch, residual = share.load(args.branch, 0), share.load(args.residual, 0)
    w_branch = share.load(args.w_branch)
    w_next = share.load(args.w_next) if norm.normed else []
    scale = inverse(branch)
    total = share.map(lambda b, r, w: r + b * scale * w, branch, residual, w_branch)
    if norm.scaled:
        scalar = share.splat(let(args.scalar[0]))
        total = share.map(lambda value: value * scalar, total)
    if writes is None:
        share.store(out, total, 0)
    else:
        with when(writes):
            share.store(out, total, 0)
    if not norm.normed:
        return total
    scale_next = inverse(total)
    return share.map(lambda value, w: value * scale_next * w, total, w_next)


def merge_quads(
    sums: Any, stats: Any, first_head: Any, heads: int, thread: Any, threads: int
) -> list[Any]:
    """The thread's quads of `heads` merged heads; ends where all threads have read shared memory.

    Each (head, split) has one weight, made once by one thread.
    """
    splits, dim = int(sums.shape[0]), int(sums.shape[2])
    weights = shared((heads * splits,))
    with strided(thread, threads, heads * splits) as item:
        h, s = let(first_head + tirx.floordiv(item, splits)), let(tirx.floormod(item, splits))
        highest = Cell("float32", stats[0, h, 0])
        with T.serial(1, splits) as other:
            highest.set(tirx.max(highest.value, stats[other, h, 0]))
        total = Cell("float32", zero())
        with T.serial(0, splits) as other:
            weight = tirx.exp(stats[other, h, 0] - highest.value)
            total.add(weight * stats[other, h, 1])
        store(weights, tirx.exp(stats[s, h, 0] - highest.value) / total.value, item)
    barrier()
    per_head, count = dim // WORD, heads * dim // WORD
    turns = -(-count // threads)
    merged = local((turns * WORD,))
    for turn in range(turns):
        store(merged, tirx.Broadcast(zero(), WORD), T.ramp(turn * WORD, 1, WORD))
    items = [let(tirx.min(thread + turn * threads, count - 1)) for turn in range(turns)]
    with T.serial(0, splits) as s:
        for turn, item in enumerate(items):
            h, place = tirx.floordiv(item, per_head), T.ramp(turn * WORD, 1, WORD)
            column = T.ramp(tirx.floormod(item, per_head) * WORD, 1, WORD)
            weight = tirx.Broadcast(weights[h * splits + s], WORD)
            store(merged, merged[place] + weight * sums[s, first_head + h, column], place)
    return [let(merged[T.ramp(turn * WORD, 1, WORD)]) for turn in range(turns)]


def float_quads(x: Any, width: int, thread: Any, threads: int) -> list[Any]:
    """The thread's quads of a vector (1, width)."""
    share = RowShare(thread, threads, width)
    return [let(quad.astype(f"float32x{WORD}")) for quad in share.load(x, 0)]


def make_rounded_norm(operator: RoundedNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """One block. Shared: a float32 a thread, and one a quad. Reference: `RoundedNorm.plain`."""
    width, quads = operator.width, operator.width // WORD
    threads = row_threads(quads, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = NormArguments.declare(build, operator.norm)
        out = build.arg("out", (1, width), "float32")
        words, scales = (
            build.arg(name, *shape)
            for name, shape in zip(("words", "scales"), packed_specs(width), strict=True)
        )
        with launch(threads, 1) as (_, _, thread):
            found = norm_quads(operator.norm, args, out, None, thread, threads)
            round_quads(
                found,
                thread,
                threads,
                quads,
                operator.interleaved,
                lambda quad, word: store(words, word, 0, quad),
                lambda group, scale: store(scales, scale, 0, group),
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
