"""Vectors rounded to int8: made from norms, from splits of an attention and from plain vectors.

A thread owns every so many vec4s, four channels that make one word. Eight neighbouring threads find
the largest magnitude of their group in shared memory, or within a subgroup. Meaning:
gemma4_compile/operators/activation_quantization.py. Kernels that do nothing else: quantize_rows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    WORD,
    byte_of,
    group_factor,
    group_scale,
    round_half_up,
)
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import ExpertNormVector, NormVector
from gemma4_compile.operators.static_rounding import HIGHEST, LOWEST, word_of_wholes
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    bind,
    materialize,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockSums,
    add,
    barrier,
    inverse_rms,
    max_over_neighbours,
    shared,
    strided,
    tree,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import nearest
from gemma4_compile.targets.kernels.common.row_slice import Readable, RowSlice
from gemma4_compile.targets.kernels.prologues.expert_norms import (
    EXPERT_SUMS,
    ExpertNormArguments,
    expert_norm,
)

VEC4S = GROUP // WORD  # of a group

Put = Callable[[Expr, Expr], None]


@contextmanager
def _inside(item: Expr, iteration: int, threads: int, count: int) -> Iterator[None]:
    """Run the body if a thread's item exists, where some threads have none in this iteration."""
    if (iteration + 1) * threads > count:
        with when(item < count):
            yield
    else:
        yield


def _lanes(vec4: Expr) -> list[Expr]:
    return [tirx.Shuffle([vec4], [lane]) for lane in range(WORD)]


def round_vec4s(
    vec4s: Sequence[Expr],
    block: Block,
    count: int,
    interleaved: bool,
    put_word: Put,
    put_scale: Put,
) -> None:
    """Round a block's slice of a vector, all threads together; it ends without a barrier.

    Parameters
    ----------
    vec4s : float32x4; vec4 `iteration` of a thread is number ``iteration * threads + thread``
        of `count`
    put_word, put_scale : store a word by its vec4, and a scale by its group
    """
    thread, threads = block.thread, block.threads
    largest = None if block.subgroup_width >= VEC4S else shared((count,))
    tops = []
    for iteration, vec4 in enumerate(vec4s):
        item = bind(thread + iteration * threads)
        a, b, c, d = (tirx.max(lane, -lane) for lane in _lanes(vec4))
        top = tirx.max(tirx.max(a, b), tirx.max(c, d))
        if largest is None:  # a thread beyond the end belongs to no group
            tops.append(max_over_neighbours(top, VEC4S))
        else:
            with _inside(item, iteration, threads, count):
                store(largest, top, item)
    if largest is not None:
        barrier()
    for iteration, vec4 in enumerate(vec4s):
        item = bind(thread + iteration * threads)
        with _inside(item, iteration, threads, count):
            group = bind(tirx.floordiv(item, VEC4S))
            magnitude = tops[iteration] if largest is None else _largest_of(largest, group)
            factor = bind(group_factor(magnitude))
            put_word(item, bind(_word([bind(lane * factor) for lane in _lanes(vec4)], interleaved)))
            with when(tirx.floormod(item, VEC4S) == 0):
                put_scale(group, group_scale(magnitude))


def step_vec4s(
    vec4s: Sequence[Expr],
    block: Block,
    count: int,
    interleaved: bool,
    step: Expr,
    put_word: Put,
) -> None:
    """Round a block's slice of a vector to a checkpoint's step, which is no 0, without a barrier.

    A quotient is a product with the step's inverse and, by a second one with what that leaves, as
    good as rounded once where products are added without a rounding between.

    Parameters
    ----------
    vec4s, count, put_word : as of `round_vec4s`
    """
    inverse = materialize(f32(1.0) / step, "float32")

    def whole(value: Expr) -> Expr:
        held = bind(tirx.max(tirx.min(value, step * f32(HIGHEST)), step * f32(LOWEST)))
        about = bind(held * inverse)
        return nearest(about + (held - about * step) * inverse)

    for iteration, vec4 in enumerate(vec4s):
        item = bind(block.thread + iteration * block.threads)
        with _inside(item, iteration, block.threads, count):
            wholes = [bind(whole(bind(lane))) for lane in _lanes(vec4)]
            put_word(item, bind(word_of_wholes(wholes, interleaved)))


def _largest_of(largest: Buffer, group: Expr) -> Expr:
    magnitude: Expr = largest[group * VEC4S]
    for other in range(1, VEC4S):
        magnitude = tirx.max(magnitude, largest[group * VEC4S + other])
    return bind(magnitude)


def _word(values: Sequence[Expr], interleaved: bool) -> Expr:
    word: Expr = tirx.const(0, "uint32")
    for byte in range(WORD):
        integer = round_half_up(values[byte_of(byte, interleaved)]).astype("uint32")
        lowest = tirx.bitwise_and(integer, tirx.const(255, "uint32"))
        word = tirx.bitwise_or(word, tirx.shift_left(lowest, tirx.const(8 * byte, "uint32")))
    return word


@dataclass
class NormArguments:
    """The buffers of a `NormVector`, in call order."""

    norm: NormVector
    branch: Buffer
    residual: Buffer
    w_branch: Readable
    scalar: Buffer | None
    w_next: Readable | None

    @staticmethod
    def declare(build: FunctionBuilder, norm: NormVector, rows: Index = 1) -> NormArguments:
        """Declare them, right where they stand."""
        width = norm.width
        return NormArguments(
            norm,
            branch=build.arg("branch", (rows, width), "float32"),
            residual=build.arg("residual", (rows, width), "float32"),
            w_branch=build.arg("w_branch", (width,), "float32"),
            scalar=build.arg("scalar", (1,), "float32") if norm.scaled else None,
            w_next=build.arg("w_next", (width,), "float32") if norm.normed else None,
        )


def declare_norm(
    build: FunctionBuilder, norm: NormVector | ExpertNormVector
) -> NormArguments | ExpertNormArguments:
    """The arguments of what comes before a matmul."""
    if isinstance(norm, ExpertNormVector):
        return ExpertNormArguments.declare(build, norm)
    return NormArguments.declare(build, norm)


def norm_vec4s(
    args: NormArguments | ExpertNormArguments,
    out: Buffer | None,
    writes: Expr,
    block: Block,
) -> list[Expr]:
    """The thread's vec4s of x; r' is written to `out` where `writes` holds."""
    assert out is not None, "an operator with a norm has the new residual among its results"
    row_slice = RowSlice(block, args.norm.width)
    if isinstance(args, ExpertNormArguments):
        sums = BlockSums(block, EXPERT_SUMS)
        return expert_norm(args, out, writes, row_slice, sums)
    nexts = [] if args.w_next is None else [args.w_next]
    total, normed = norms_at_once(args, nexts, out, row_slice, writes=writes)
    return normed[0] if normed else total


def norms_at_once(
    args: NormArguments,
    w_nexts: Sequence[Readable],
    out: Buffer,
    row_slice: RowSlice,
    row: Index = 0,
    writes: Expr | None = None,
) -> tuple[list[Expr], list[list[Expr]]]:
    """The thread's slice of r' of a row, and of its norm with each of `w_nexts`.

    r' is written to `out`, where `writes` holds. Everything is read at the start, once, and stays
    in registers. The block meets once for both norms: with c = b * w_branch and the branch's
    1 / rms i, the squares of r + i c add up to r.r + 2 i r.c + i^2 c.c.
    """
    branch, residual = row_slice.load(args.branch, row), row_slice.load(args.residual, row)
    w_branch = row_slice.load(args.w_branch)
    nexts = [row_slice.load(w_next) for w_next in w_nexts]
    scalar = bind(args.scalar[0]) if args.scalar is not None else f32(1.0)
    norm = args.norm
    weighed = row_slice.map(lambda b, w: b * w, branch, w_branch)
    squares = norm_squares(norm, row_slice, branch, residual, weighed)
    scale, scale_next = norm_scales(norm, row_slice, squares, scalar)
    total = row_slice.map(lambda r, c: (r + c * scale) * row_slice.splat(scalar), residual, weighed)
    with nullcontext() if writes is None else when(writes):
        row_slice.store(out, total, row)
    return total, [
        row_slice.map(lambda value, w: value * scale_next * w, total, w_next) for w_next in nexts
    ]


def norm_squares(
    norm: NormVector,
    row_slice: RowSlice,
    branch: Sequence[Expr],
    residual: Sequence[Expr],
    weighed: Sequence[Expr],
) -> list[Expr]:
    """b.b, r.r, r.c and c.c of the whole row; all but the first are 0 where no norm follows."""
    pairs = [(branch, branch), (residual, residual), (residual, weighed), (weighed, weighed)]
    parts = [row_slice.dot(left, right) for left, right in pairs[: WORD if norm.normed else 1]]
    missing = [zero()] * (WORD - len(parts))
    sums = BlockSums(row_slice.block)
    return [*sums(parts), *missing]


def norm_scales(
    norm: NormVector, row_slice: RowSlice, squares: Sequence[Expr], scalar: Expr
) -> tuple[Expr, Expr]:
    """1 / rms of the branch and of r', each in all lanes; `squares` are `norm_squares`."""
    if norm.normed:
        scale, scale_next = residual_scales(norm.width, norm.eps, squares, scalar)
    else:
        scale, scale_next = inverse_rms(squares[0], norm.width, norm.eps), zero()
    return bind(row_slice.splat(scale)), bind(row_slice.splat(scale_next))


def residual_scales(
    width: int, eps: float, squares: Sequence[Expr], scalar: Expr
) -> tuple[Expr, Expr]:
    """1 / rms of the branch and of r', which is multiplied by `scalar`."""
    bb, rr, rc, cc = squares
    scale = inverse_rms(bb, width, eps)
    after = bind(rr + scale * (f32(2.0) * rc + scale * cc))
    return scale, inverse_rms(tirx.max(after, zero()) * scalar * scalar, width, eps)


def combine_vec4s(block: Block, o_partial: Buffer, split_lse: Buffer, heads: int) -> list[Expr]:
    """The thread's vec4s of all combined heads; ends without a barrier.

    All loads are under way before the first is used. Each (head, split) has one weight, made once
    by one thread.
    """
    thread, threads = block.thread, block.threads
    splits, dim = int(o_partial.shape[0]), int(o_partial.shape[2])
    per_head, count = dim // WORD, heads * dim // WORD
    vec4s = []
    for iteration in range(-(-count // threads)):
        item = bind(tirx.min(thread + iteration * threads, count - 1))
        head = bind(tirx.floordiv(item, per_head))
        column = T.ramp(tirx.floormod(item, per_head) * WORD, 1, WORD)
        vec4s.append((head, [bind(o_partial[s, head, column]) for s in range(splits)]))
    weights = shared((heads * splits,))
    with strided(block, heads * splits) as item:
        h, own = bind(tirx.floordiv(item, splits)), bind(tirx.floormod(item, splits))
        pairs = [(bind(split_lse[s, h, 0]), bind(split_lse[s, h, 1])) for s in range(splits)]
        highest = pairs[0][0]
        for other, _ in pairs[1:]:
            highest = tirx.max(highest, other)
        highest = bind(highest)
        total = tree([tirx.exp(maximum - highest) * weight for maximum, weight in pairs], add)
        row_slice = tirx.exp(split_lse[own, h, 0] - highest) * split_lse[own, h, 1] / total
        store(weights, row_slice, item)
    barrier()
    combined = []
    for head, values in vec4s:
        shares = [tirx.Broadcast(bind(weights[head * splits + s]), WORD) for s in range(splits)]
        products = [
            row_slice * value.astype(f"float32x{WORD}")
            for row_slice, value in zip(shares, values, strict=True)
        ]
        combined.append(bind(tree(products, add)))
    return combined


def float_vec4s(block: Block, x: Buffer, width: int, begin: int = 0) -> list[Expr]:
    """The thread's vec4s of a vector x[0, begin:] of `width` channels."""
    row_slice = RowSlice(block, width)
    return [bind(vec4.astype(f"float32x{WORD}")) for vec4 in row_slice.load_from(x, begin, 0)]
