"""The router's scores in the launch of the dense gate and up: the first blocks of the grid.

Both begin with the residual after attention. A block an expert makes its score from sums over the
row alone: with c = branch * w, the branch's 1 / rms i and the expert's row p (times the router's
scale), the squares of r' = r + i c add up to r.r + 2 i r.c + i^2 c.c, and r'.p = r.p + i c.p.
Meaning: `RoutedNorm` in gemma4_compile/operators/moe.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.moe import (
    BRANCH_NORM,
    DENSE_NORM,
    EXPERT_NORM,
    SCALE,
    VECTORS,
    RoutedNorm,
    routed_begin,
)
from gemma4_compile.operators.norms import NormVector
from gemma4_compile.operators.prologues import Routed
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, BlockSums, strided, zero
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.prologues.vectors import NormArguments, residual_scales


@dataclass(frozen=True)
class _Scored:
    """What a block knows of its row besides the score.

    Attributes
    ----------
    row_slice : the thread's
    residual, weighed : slices of r and of c
    of_branch, of_all : 1 / rms of the branch and of r'
    """

    row_slice: RowSlice
    residual: Sequence[Expr]
    weighed: Sequence[Expr]
    of_branch: Expr
    of_all: Expr


class RoutedNormArguments:
    """The arguments of a `RoutedNorm`, declared right where they stand."""

    def __init__(self, build: FunctionBuilder, norm: RoutedNorm, rows: Index = 1) -> None:
        width, self.norm = norm.width, norm
        self._branch = build.arg("branch", (rows, width), "float32")
        self._residual = build.arg("residual", (rows, width), "float32")
        self._vectors = build.arg("vectors", (VECTORS, width), "float32")
        shape = (norm.experts, width)
        self._projection = build.arg("projection", shape, norm.weight_dtype)

    def norm_to(self, *numbers: int) -> tuple[NormArguments, list[StackRow]]:
        """Arguments of the first norm alone, and the weights of those after it."""
        norm = NormVector(self.norm.width, self.norm.eps, scaled=False, normed=True)
        first, *after = (StackRow(self._vectors, row) for row in (BRANCH_NORM, *numbers))
        return NormArguments(norm, self._branch, self._residual, first, None, None), after

    @property
    def norm_arguments(self) -> NormArguments:
        """Those of the norm in front of the matmul."""
        args, (w_next,) = self.norm_to(DENSE_NORM)
        return replace(args, w_next=w_next)

    def score(self, routed: Buffer, e: Expr, block: Block) -> None:
        """The score of expert e; the block of the first also leaves the experts' input."""
        found = self.store_scores(routed, 0, [e], RowSlice(block, self.norm.width))
        with when(e == 0):
            row_slice = found.row_slice
            of_branch, of_all = row_slice.splat(found.of_branch), row_slice.splat(found.of_all)
            weight = row_slice.load(StackRow(self._vectors, EXPERT_NORM))
            hidden = row_slice.map(
                lambda r, c, w: (r + c * of_branch) * of_all * w,
                found.residual,
                found.weighed,
                weight,
            )
            store_hidden(routed, hidden, self.norm.experts, row_slice)

    def store_scores(
        self, scores: Buffer, row: Index, experts: Sequence[Expr], row_slice: RowSlice
    ) -> _Scored:
        """Write the scores of some experts in a row."""
        norm = self.norm
        branch, residual = row_slice.load(self._branch, row), row_slice.load(self._residual, row)
        w_branch = row_slice.load(StackRow(self._vectors, BRANCH_NORM))
        scale = row_slice.load(StackRow(self._vectors, SCALE))
        projected = [
            [
                row_slice.vectors.cast(value, "float32")
                for value in row_slice.load(self._projection, e)
            ]
            for e in experts
        ]
        weighed = row_slice.map(lambda b, w: b * w, branch, w_branch)
        pairs = [
            (branch, branch),
            (residual, residual),
            (residual, weighed),
            (weighed, weighed),
        ]
        for own in projected:
            scaled = row_slice.map(lambda p, s: p * s, own, scale)
            pairs += [(residual, scaled), (weighed, scaled)]
        sums = BlockSums(row_slice.block)
        bb, rr, rc, cc, *of_experts = sums([row_slice.dot(left, right) for left, right in pairs])

        i, after = residual_scales(norm.width, norm.eps, (bb, rr, rc, cc), f32(1.0))
        with when(row_slice.block.thread == 0):
            for e, rp, cp in zip(experts, of_experts[::2], of_experts[1::2], strict=True):
                store(scores, (rp + i * cp) * (after * f32(norm.factor)), row, e)
        return _Scored(row_slice, residual, weighed, i, after)


def store_hidden(routed: Buffer, hidden: Sequence[Expr], experts: int, row_slice: RowSlice) -> None:
    """Write the experts' input after the scores."""
    begin = routed_begin(experts)
    row_slice.store_from(routed, hidden, begin, 0)
    if begin > experts:
        with strided(row_slice.block, begin - experts) as gap:
            store(routed, zero(), 0, experts + gap)


def declare_router(build: FunctionBuilder, operator: Linear) -> RoutedNormArguments | None:
    """The arguments before the weights, if the operator has the router next to it."""
    prologue = operator.prologue
    return (
        RoutedNormArguments(build, prologue.norm(operator.cols))
        if isinstance(prologue, Routed)
        else None
    )


def routing_blocks(router: RoutedNormArguments | None) -> int:
    """Blocks in front of those of the matmul."""
    return router.norm.experts if router else 0


@contextmanager
def behind_router(
    router: RoutedNormArguments | None,
    routed: Buffer | None,
    index: Expr,
    block: Block,
) -> Iterator[tuple[Expr, Block]]:
    """Route in the first blocks; the body is for the others, with their index from 0 on.

    Loops of one iteration or none: TVM lets buffers share memory, with barriers between them, and
    does not put a barrier under a condition.
    """
    if router is None or routed is None:
        yield index, block
        return
    first = routing_blocks(router)
    routes = bind(tirx.Select(index < first, i32(1), i32(0)))
    with T.serial(0, routes):
        router.score(routed, index, block)
    with T.serial(0, i32(1) - routes):
        yield bind(index - first), block
