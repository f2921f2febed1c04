"""The end of a layer with experts, by every block of what comes next: two branches, four norms.

Everything is read at the start, once, and stays in registers. With a = dense * w[0],
b = experts * w[1] and the branches' 1 / rms i and j, the squares of i a + j b add up to
i^2 a.a + 2 i j a.b + j^2 b.b: the block meets once for the branches and their sum, and once for the
new residual. Where both branches nearly cancel, that costs digits: the relative error is one of
float32 times ((|i a| + |j b|) / |i a + j b|)^2. Meaning: `ExpertNormVector` in
gemma4_compile/operators/norms.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import ExpertNormVector
from gemma4_compile.operators.tir import FunctionBuilder, bind, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import BlockSums, inverse_rms, zero
from gemma4_compile.targets.kernels.common.row_slice import Readable, RowSlice, WeighedPairs

EXPERT_SUMS = 2  # vectors of sums that the block makes at once where there is memory


@dataclass
class ExpertNormArguments:
    """The buffers of an `ExpertNormVector`, in call order."""

    norm: ExpertNormVector
    dense: Buffer
    experts: Readable
    residual: Buffer
    w_branches: Buffer
    scalar: Buffer
    w_next: Buffer

    @staticmethod
    def declare(
        build: FunctionBuilder, norm: ExpertNormVector, rows: Index = 1
    ) -> ExpertNormArguments:
        """Declare them, right where they stand; with `top_k` the experts come one by one."""
        width = norm.width
        return ExpertNormArguments(
            norm,
            dense=build.arg("dense", (rows, width), "float32"),
            experts=_declare_experts(build, width, rows, norm.top_k),
            residual=build.arg("residual", (rows, width), "float32"),
            w_branches=build.arg("w_branches", (3, width), "float32"),
            scalar=build.arg("scalar", (1,), "float32"),
            w_next=build.arg("w_next", (width,), "float32"),
        )


def _declare_experts(
    build: FunctionBuilder, width: int, rows: Index, top_k: int
) -> Buffer | WeighedPairs:
    if not top_k:
        return build.arg("experts", (rows, width), "float32")
    outputs = build.arg("outputs", (rows * top_k, width), "float32")
    return WeighedPairs(outputs, build.arg("weights", (rows, top_k), "float32"))


def expert_norm(
    args: ExpertNormArguments,
    out: Buffer,
    writes: Expr | None,
    row_slice: RowSlice,
    sums: BlockSums,
    row: Index = 0,
) -> list[Expr]:
    """The thread's slice of x; r' is written to `out` where `writes` holds (None: everywhere)."""
    dense, experts = row_slice.load(args.dense, row), row_slice.load(args.experts, row)
    w_dense, w_experts, w_both = (row_slice.load(args.w_branches, index) for index in range(3))
    residual, w_next = row_slice.load(args.residual, row), row_slice.load(args.w_next)
    scalar = bind(args.scalar[0])

    def times(left: Sequence[Expr], right: Sequence[Expr]) -> list[Expr]:
        return row_slice.map(lambda a, b: a * b, left, right)

    inverse = partial(inverse_rms, width=args.norm.width, eps=args.norm.eps)
    a, b = times(dense, w_dense), times(experts, w_experts)
    pairs = [(dense, dense), (experts, experts), (a, a), (a, b), (b, b)]
    dd, ee, aa, ab, bb = sums([row_slice.dot(left, right) for left, right in pairs])
    i, j = inverse(dd), inverse(ee)
    both = i * (i * aa + f32(2.0) * j * ab) + j * j * bb
    scale = inverse(tirx.max(both, zero()))
    of_dense, of_experts = row_slice.splat(bind(scale * i)), row_slice.splat(bind(scale * j))
    factor = row_slice.splat(scalar)
    branch = row_slice.map(lambda c, d, w: (c * of_dense + d * of_experts) * w, a, b, w_both)
    total = row_slice.map(lambda r, c: (r + c) * factor, residual, branch)
    if writes is None:
        row_slice.store(out, total, row)
    else:
        with when(writes):
            row_slice.store(out, total, row)
    scale_next = row_slice.splat(inverse(sums([row_slice.dot(total, total)])[0]))
    return row_slice.map(lambda value, w: value * scale_next * w, total, w_next)
