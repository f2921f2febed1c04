"""The router's scores in the launch of the dense gate and up: the first blocks of the grid.

Both begin with the residual after attention. A block an expert makes its score from sums over the
row alone: with c = branch * w, the branch's 1 / rms i and the expert's row p (times the router's
scale), the squares of r' = r + i c add up to r.r + 2 i r.c + i^2 c.c, and r'.p = r.p + i c.p.
Meaning: `RoutedNorm` in gemma4_compile/operators/moe.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.fused_linear import RoutedForm
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.moe import (
    BRANCH_NORM,
    DENSE_NORM,
    EXPERT_NORM,
    SCALE,
    VECTORS,
    RoutedNorm,
)
from gemma4_compile.operators.norms import NormVector
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, BlockSums
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.kernels.linear.int8_vectors import NormArguments, residual_scales
from gemma4_compile.targets.kernels.moe.router import store_hidden


class BesideRouter:
    """The arguments of a `RoutedNorm`, declared right where they stand."""

    def __init__(self, build: FunctionBuilder, norm: RoutedNorm) -> None:
        width, self.norm = norm.width, norm
        self._branch = build.arg("branch", (1, width), "float32")
        self._residual = build.arg("residual", (1, width), "float32")
        self._vectors = build.arg("vectors", (VECTORS, width), "float32")
        shape = (norm.experts, width)
        self._projection = build.arg("projection", shape, norm.weight_dtype)

    @property
    def norm_arguments(self) -> NormArguments:
        """Those of the norm in front of the matmul."""
        w_branch, w_next = (StackRow(self._vectors, row) for row in (BRANCH_NORM, DENSE_NORM))
        norm = NormVector(self.norm.width, self.norm.eps, scaled=False, normed=True)
        return NormArguments(norm, self._branch, self._residual, w_branch, None, w_next)

    def score(self, routed: Buffer, e: Expr, block: Block) -> None:
        """The score of expert e; the block of the first also leaves the experts' input."""
        norm, row_slice = self.norm, RowSlice(block, self.norm.width)
        branch, residual = row_slice.load(self._branch, 0), row_slice.load(self._residual, 0)
        w_branch = row_slice.load(StackRow(self._vectors, BRANCH_NORM))
        scale = row_slice.load(StackRow(self._vectors, SCALE))
        row = [
            row_slice.vectors.cast(value, "float32")
            for value in row_slice.load(self._projection, e)
        ]
        weighed = row_slice.map(lambda b, w: b * w, branch, w_branch)
        scaled = row_slice.map(lambda p, s: p * s, row, scale)
        pairs = [
            (branch, branch),
            (residual, residual),
            (residual, weighed),
            (weighed, weighed),
            (residual, scaled),
            (weighed, scaled),
        ]
        sums = BlockSums(block)
        bb, rr, rc, cc, rp, cp = sums([row_slice.dot(left, right) for left, right in pairs])

        i, after = residual_scales(norm.width, norm.eps, (bb, rr, rc, cc), f32(1.0))
        with when(block.thread == 0):
            store(routed, (rp + i * cp) * (after * f32(norm.factor)), 0, e)
        with when(e == 0):
            of_branch, of_all = row_slice.splat(i), row_slice.splat(after)
            weight = row_slice.load(StackRow(self._vectors, EXPERT_NORM))
            hidden = row_slice.map(
                lambda r, c, w: (r + c * of_branch) * of_all * w, residual, weighed, weight
            )
            store_hidden(routed, hidden, norm.experts, row_slice)


def declare_router(build: FunctionBuilder, operator: Linear) -> BesideRouter | None:
    """The arguments before the weights, if the operator has the router next to it."""
    return BesideRouter(build, operator.routed_norm) if isinstance(operator, RoutedForm) else None


def routing_blocks(router: BesideRouter | None) -> int:
    """Blocks in front of those of the matmul."""
    return router.norm.experts if router else 0


@contextmanager
def behind_router(
    router: BesideRouter | None,
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
