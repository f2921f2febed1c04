"""Norm kernels: one thread block a row, its threads striding over the row's channels.

Definitions: gemma4_compile/operators/norms.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import (
    PerLayerInputs,
    ResidualNorm,
    RmsNorm,
    TakeLastRow,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    inverse_rms,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.common.row_slice import Readable, RowSlice, StackRow
from gemma4_compile.targets.spec import TargetSpec

TAKE_THREADS = 64


def make_rms_norm(operator: RmsNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Shared: one float32 a thread. Reference: `RmsNorm.definition`."""
    rows, width = operator.rows.extent(), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), "float32")
        w = build.arg("w", (width,), "float32")
        y = build.arg("y", (rows, width), operator.out_dtype)
        with launch(threads, rows) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            row_slice = RowSlice(block, width)
            mine, weight = row_slice.load(x, i), row_slice.load(w)
            inverse = inverse_rms(reduce(row_slice.dot(mine, mine)), width, operator.eps)
            scale = row_slice.splat(inverse)
            row_slice.store(y, row_slice.map(lambda a, b: a * scale * b, mine, weight), i)
    return build.result


def make_residual_norm(operator: ResidualNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Everything is read once, at the start: one block's time is the latency of its loads.

    Grid: rows. Shared: one float32 a thread. Reference: `ResidualNorm.definition`.
    """
    rows, width = operator.rows.extent(), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        y = build.arg("y", (rows, width), "float32")
        residual = build.arg("residual", (rows, width), "float32")
        scalar: Buffer | None = None
        w_branch: Readable
        w_next: Readable | None = None
        if operator.stacked:
            weights = build.arg("weights", (operator.stacked, width), "float32")
            w_branch, w_next = StackRow(weights, 0), StackRow(weights, 1)
        else:
            w_branch = build.arg("w_branch", (width,), "float32")
            scalar = build.arg("scalar", (1,), "float32") if operator.scaled else None
            w_next = build.arg("w_next", (width,), "float32") if operator.next_dtype else None
        out = build.arg("out", (rows, width), "float32")
        hidden = (
            build.arg("hidden", (rows, width), operator.next_dtype) if operator.next_dtype else None
        )
        with launch(threads, rows) as (i, _, thread):
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            nexts = [] if w_next is None else [w_next]
            rows_of = y, residual, out
            _, normed = residual_norms(
                row_slice, *rows_of, i, w_branch, nexts, operator.eps, scalar
            )
            if hidden is not None:
                row_slice.store(hidden, normed[0], i)
    return build.result


def residual_norms(
    row_slice: RowSlice,
    y: Buffer,
    residual: Buffer,
    out: Buffer,
    i: Index,
    w_branch: Readable,
    w_nexts: Sequence[Readable],
    eps: float,
    scalar: Buffer | None = None,
) -> tuple[list[Expr], list[list[Expr]]]:
    """Write row i of the new residual; return it, and its norm with each of `w_nexts`."""
    reduce, width = BlockReduction(row_slice.block), row_slice.width
    branch, old = row_slice.load(y, i), row_slice.load(residual, i)
    branch_weight = row_slice.load(w_branch)
    next_weights = [row_slice.load(w_next) for w_next in w_nexts]
    factor = row_slice.splat(bind(scalar[0]) if scalar is not None else f32(1.0))
    squares = reduce(row_slice.dot(branch, branch))
    scale = row_slice.splat(inverse_rms(squares, width, eps))
    total = row_slice.map(lambda b, r, w: (r + b * scale * w) * factor, branch, old, branch_weight)
    row_slice.store(out, total, i)
    if not next_weights:
        return total, []
    squares = reduce(row_slice.dot(total, total))
    next_scale = row_slice.splat(inverse_rms(squares, width, eps))
    return total, [
        row_slice.map(lambda a, w: a * next_scale * w, total, weight) for weight in next_weights
    ]


def make_per_layer_inputs(operator: PerLayerInputs, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: layers x rows. Shared: one float32 a thread. Reference: `PerLayerInputs.definition`."""
    rows, width = operator.rows.extent(), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    shape = (rows, operator.layers * width)
    with function(scheduled=True) as build:
        context = build.arg("context", shape, "float32")
        tokens = build.arg("tokens", shape, "float32")
        w = build.arg("w", (width,), "float32")
        out = build.arg("out", shape, "float32")
        with launch(threads, operator.layers, rows) as (layer, i, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            squares = LocalVar("float32", zero())
            scale = f32(operator.context_scale)
            with strided(block, width) as j:
                value = bind(context[i, layer * width + j] * scale)
                squares.add(value * value)
            inverse = inverse_rms(reduce(squares.value), width, operator.eps)
            with strided(block, width) as j:
                column = bind(layer * width + j)
                normed = context[i, column] * scale * inverse * w[j]
                token = tokens[i, column] * f32(operator.token_scale)
                store(out, (normed + token) * f32(operator.input_scale), i, column)
    return build.result


def make_take_last_row(operator: TakeLastRow, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: runs of the row. Reference: `TakeLastRow.definition`."""
    rows, width = symbolic_rows(None), operator.width
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), operator.dtype)
        y = build.arg("y", (1, width), operator.dtype)
        with launch(TAKE_THREADS, -(-width // TAKE_THREADS)) as (block, _, thread):
            j = bind(block * TAKE_THREADS + thread)
            with when(j < width):
                store(y, x[i32(rows) - 1, j], 0, j)
    return build.result
