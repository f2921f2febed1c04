"""Kernels around a vision tower's layers: patches, positions, rotation, pooling.

Definitions: gemma4_compile/operators/vision.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import as_f32, cos_sin, exact_f32, f32
from gemma4_compile.operators.tir import bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.operators.vision import (
    CHANNELS,
    AddPatchPositions,
    PatchRotary,
    PixelPatches,
    PoolPatches,
    X,
    Y,
    patch_coordinate,
    patch_of,
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

THREADS = 64


def make_pixel_patches(operator: PixelPatches, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: channels / THREADS x patches. Reference: `PixelPatches.definition`."""
    n, width = symbolic_rows(None), operator.patch**2 * CHANNELS
    rows = n * operator.pooling**2
    with function(scheduled=True) as build:
        pixels = build.arg("pixels", (n, operator.block**2 * CHANNELS), "float32")
        patches = build.arg("patches", (rows, width), operator.out_dtype)
        with launch(THREADS, -(-width // THREADS), rows) as (part, row, thread):
            channel = bind(part * THREADS + thread)
            with when(channel < width):
                block, place = operator.source(row, channel)
                value = operator.value(pixels[bind(block), bind(place)])
                store(patches, value.astype(operator.out_dtype), row, channel)
    return build.result


def make_add_patch_positions(operator: AddPatchPositions, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: channels / THREADS x patches. Reference: `AddPatchPositions.definition`."""
    n, layout = symbolic_rows(None), operator.layout
    rows = n * operator.pooling**2
    with function(scheduled=True) as build:
        positions = build.arg("positions", (n, 2), "int32")
        x = build.arg("x", (rows, layout.cols), "float32")
        table = [build.arg(*spec) for spec in layout.shapes()]
        out = build.arg("out", (rows, layout.cols), "float32")
        with launch(THREADS, -(-layout.cols // THREADS), rows) as (part, row, thread):
            channel = bind(part * THREADS + thread)
            from_x, from_y = (materialize(i32(r)) for r in operator.table_rows(positions, row))
            with when(channel < layout.cols):
                both = layout.value(table, from_x, channel) + layout.value(table, from_y, channel)
                store(out, x[row, channel] + both, row, channel)
    return build.result


def make_patch_rotary(operator: PatchRotary, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: pairs of all patches / THREADS. Reference: `PatchRotary.definition`."""
    n, count, pooling = symbolic_rows(None), operator.axis_pairs, operator.pooling
    rows, pairs = n * pooling**2, 2 * count
    with function(scheduled=True) as build:
        positions = build.arg("positions", (n, 2), "int32")
        rotary = build.arg("rotary", (rows, pairs, 2), "float32")
        blocks = tirx.floordiv(rows * pairs + (THREADS - 1), THREADS)
        with launch(THREADS, blocks) as (part, _, thread):
            item = bind(part * THREADS + thread)
            with when(item < i32(rows) * pairs):
                row, pair = bind(item // pairs), bind(item % pairs)
                block, column, line = patch_of(row, pooling)
                is_x = pair < count
                axis = bind(tirx.Select(is_x, i32(X), i32(Y)))
                within = bind(tirx.Select(is_x, column, line))
                place = patch_coordinate(positions[bind(block), axis], within, pooling)
                angle = materialize(as_f32(place) * _frequency(operator, pair % count), "float32")
                for index, value in enumerate(cos_sin(angle)):
                    store(rotary, value, row, pair, index)
    return build.result


def _frequency(operator: PatchRotary, pair: Expr) -> Expr:
    """Radians a patch of a pair of an axis."""
    *others, result = [exact_f32(value) for value in operator.frequencies()]
    for j, value in enumerate(others):
        result = tirx.Select(pair == j, value, result)
    return materialize(result, "float32")


def make_pool_patches(operator: PoolPatches, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: blocks of pixels. Shared: one float32 a thread. Reference: `PoolPatches.definition`."""
    n, width, count = symbolic_rows(None), operator.width, operator.pooling**2
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        build.arg("positions", (n, 2), "int32")
        x = build.arg("x", (n * count, width), "float32")
        vectors = build.arg("vectors", (2, width), "float32") if operator.standardize else None
        out = build.arg("out", (n, width), operator.out_dtype)
        with launch(threads, n) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            row_slice = RowSlice(block, width)
            total = row_slice.load(x, i * count)
            for s in range(1, count):
                total = row_slice.map(lambda a, b: a + b, total, row_slice.load(x, i * count + s))
            scale = row_slice.splat(f32(operator.scale))
            y = row_slice.map(lambda a: a * scale, total)
            if vectors is not None:
                shift, factor = (row_slice.load(StackRow(vectors, row)) for row in (0, 1))
                y = row_slice.map(lambda a, b, c: (a - b) * c, y, shift, factor)
            inverse = row_slice.splat(inverse_rms(reduce(row_slice.dot(y, y)), width, operator.eps))
            row_slice.store(out, row_slice.map(lambda a: a * inverse, y), i)
    return build.result
