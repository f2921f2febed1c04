"""Kernels of the patch projection without a tower: one thread block a row, as the norms'.

Definitions: gemma4_compile/operators/vision_unified.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, function, i32, materialize
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.vision import PIXEL_SCALE, X, Y
from gemma4_compile.operators.vision_unified import (
    BIAS,
    LAYER_NORM_EPS,
    NORM2,
    NORM2_BIAS,
    NORM3,
    NORM3_BIAS,
    VECTORS,
    PixelNorm,
    PositionNorms,
)
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    inverse_rms,
    launch,
    row_threads,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice, StackRow
from gemma4_compile.targets.spec import TargetSpec

Values = Sequence[Expr]


class _Row:
    """A row in registers, and its sums over the block."""

    def __init__(self, thread: Expr, threads: int, spec: TargetSpec, width: int) -> None:
        block = Block(thread, threads, spec.simd_width)
        self.slice, self._reduce = RowSlice(block, width), BlockReduction(block)

    def inverse_rms(self, values: Values, eps: float) -> Expr:
        """``1 / sqrt(mean(values^2) + eps)``, in every lane."""
        squares = self._reduce(self.slice.dot(values, values))
        return self.slice.splat(inverse_rms(squares, self.slice.width, eps))

    def layer_norm(self, values: Values, vectors: Buffer, weight: int, bias: int) -> list[Expr]:
        """PyTorch's LayerNorm, by rows of `vectors`."""
        row_slice = self.slice
        ones = [row_slice.splat(f32(1.0))] * len(values)
        total = self._reduce(row_slice.dot(values, ones))
        mean = row_slice.splat(bind(total / f32(row_slice.width)))
        centred = row_slice.map(lambda a: a - mean, values)
        inverse = self.inverse_rms(centred, LAYER_NORM_EPS)
        weights, biases = (row_slice.load(StackRow(vectors, row)) for row in (weight, bias))
        return row_slice.map(lambda a, w, b: a * inverse * w + b, centred, weights, biases)


def make_pixel_norm(operator: PixelNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: blocks of pixels. Shared: one float32 a thread. Reference: `PixelNorm.definition`."""
    n, width = symbolic_rows(None), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        pixels = build.arg("pixels", (n, width), "float32")
        vectors = build.arg("vectors", (2, width), "float32")
        out = build.arg("out", (n, width), operator.out_dtype)
        with launch(threads, n) as (i, _, thread):
            row = _Row(thread, threads, spec, width)
            scale = row.slice.splat(f32(PIXEL_SCALE))
            x = row.slice.map(lambda a: a * scale, row.slice.load(pixels, i))
            row.slice.store(out, row.layer_norm(x, vectors, 0, 1), i)
    return build.result


def make_position_norms(operator: PositionNorms, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: blocks of pixels. Shared: one float32 a thread.

    Reference: `PositionNorms.definition`.
    """
    n, width, layout = symbolic_rows(None), operator.width, operator.layout
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        positions = build.arg("positions", (n, 2), "int32")
        x = build.arg("x", (n, width), "float32")
        vectors = build.arg("vectors", (VECTORS, width), "float32")
        table = [build.arg(*spec) for spec in layout.shapes()]
        out = build.arg("out", (n, width), operator.out_dtype)
        with launch(threads, n) as (i, _, thread):
            row = _Row(thread, threads, spec, width)
            bias = row.slice.load(StackRow(vectors, BIAS))
            y = row.slice.map(lambda a, b: a + b, row.slice.load(x, i), bias)
            y = row.layer_norm(y, vectors, NORM2, NORM2_BIAS)
            table_rows = [
                materialize(i32(operator.table_row(positions[i, axis], axis))) for axis in (X, Y)
            ]

            def placed(group: Expr, value: Expr) -> Expr:
                values = []
                for lane, single in enumerate(row.slice.vectors.lanes(value)):
                    channel = bind(group * row.slice.size + lane)
                    from_x, from_y = (layout.value(table, r, channel) for r in table_rows)
                    values.append(bind(single + (from_x + from_y)))
                return row.slice.vectors.join(values)

            z = [bind(placed(group, value)) for group, value in row.slice.numbered(y)]
            z = row.layer_norm(z, vectors, NORM3, NORM3_BIAS)
            inverse = row.inverse_rms(z, operator.eps)
            row.slice.store(out, row.slice.map(lambda a: a * inverse, z), i)
    return build.result
