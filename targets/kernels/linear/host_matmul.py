"""Matmul on a CPU: tiles of the weight as float32, each once a call, times all rows.

Definition: `Linear` in operators/linear.py, of which all but the sums is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import bind, function, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.weight_layout import WeightLayout

LANES = 16
"""Rows of the weight in a tile: two vectors of AVX2, four of NEON."""
ROWS = 4
"""Rows of x that are multiplied at a time: their sums stay in registers."""
DEPTH = 512
"""Channels of a tile, at most, which with those of the rows fit into the first cache."""
UNITS = (8, 4, 2, 1)
"""Channels whose weights LLVM makes together, by the first that divides those of a row: a word of
the weight is then read once."""


def make_host_matmul(operator: Linear) -> tirx.PrimFunc:
    """``sums[i, r] = sum_k x[i, k] W[r, k]``, and what the definition makes of them.

    Threads share the tiles of `LANES` rows of W. A tile's weights become float32 with neighbouring
    rows next to each other, so that a vector holds as many sums. A sum adds its products in the
    order of the channels, as in the definition, however many rows there are.
    """
    return operator.with_product(tiled_product)


def tiled_product(x: te.Tensor, layout: WeightLayout, weights: Sequence[te.Tensor]) -> te.Tensor:
    """See `make_host_matmul`; as `operators.linear.Product`."""
    if x.dtype != "float32":
        rounded = x
        x = te.compute(x.shape, lambda i, k: as_f32(rounded[i, k]), name="floats")
    tiles = [-(-rows // LANES) for rows in layout.split_rows]
    columns = sum(tiles) * LANES
    func = _product_of_tiles(x, layout, weights, columns)
    *inputs, output = func.params
    tensors = [x, *weights]
    sums = te.extern(
        [output.shape],
        tensors,
        lambda _ins, _outs: func.body,
        in_buffers=inputs,
        out_buffers=[output],
        dtype=["float32"],
        name="sums",
    )
    if columns == layout.rows:
        return sums
    return te.compute(
        (x.shape[0], layout.rows), lambda i, j: sums[i, _column(layout, j)], name="own"
    )


def _column(layout: WeightLayout, row: Expr) -> Expr:
    """Where the sums of a row of the weight are: each row split begins a tile."""
    column, end, padding = row, 0, 0
    for rows in layout.split_rows[:-1]:
        end += rows
        padding += -rows % LANES
        column = tirx.if_then_else(row < end, column, row + padding)
    return column


def _product_of_tiles(
    x: te.Tensor, layout: WeightLayout, weights: Sequence[te.Tensor], columns: int
) -> tirx.PrimFunc:
    n = x.shape[0]
    with function(scheduled=True) as build:
        left = build.arg("x", x.shape, "float32")
        stored = [build.arg(one.op.name, one.shape, one.dtype) for one in weights]
        sums = build.arg("sums", (n, columns), "float32")
        first = 0
        for index, rows in enumerate(layout.split_rows):
            step = layout.tensors_per_split
            split = stored[index * step : (index + 1) * step]
            with T.parallel(0, -(-rows // LANES)) as tile:
                _tile(layout, left, split, sums, tile * LANES, rows, first)
            first += -(-rows // LANES) * LANES
    return build.result


def _tile(
    layout: WeightLayout,
    x: Buffer,
    split: Sequence[Buffer],
    sums: Buffer,
    first_row: Expr,
    rows: int,
    first_column: int,
) -> None:
    """All sums of `LANES` rows of a row split."""
    cols = layout.cols
    unit = next(unit for unit in UNITS if cols % unit == 0)
    depth = next(size for size in range(DEPTH, 0, -1) if cols % size == 0 and size % unit == 0)
    weights = T.alloc_buffer((depth, LANES), "float32")

    def row(lane: Expr) -> Expr:
        """Of the weight; behind the last one it is the last one."""
        own = first_row + lane
        return tirx.min(own, rows - 1) if rows % LANES else own

    with T.serial(0, cols // depth) as part:
        with (
            T.serial(0, depth // unit) as step,
            T.serial(0, unit) as channel,
            T.vectorized(0, LANES) as lane,
        ):
            place = step * unit + channel
            value = layout.element(split, row(lane), part * depth + place)
            store(weights, value, place, lane)
        _multiply(x, weights, sums, part, first_column + first_row)


def _multiply(x: Buffer, weights: Buffer, sums: Buffer, part: Expr, column: Expr) -> None:
    """Add the products of a tile's channels to all sums of it."""
    n, (depth, _) = x.shape[0], weights.shape
    count = 1 if isinstance(n, int | tirx.IntImm) else ROWS
    with T.serial(0, tirx.floordiv(n + (count - 1), count)) as block:
        # Behind the last row it is the last one again: its sums are made twice, and the same.
        rows = [bind(tirx.min(block * count + i, n - 1)) for i in range(count)]
        own = [T.alloc_buffer((LANES,), "float32", scope="local") for _ in rows]
        for row, total in zip(rows, own, strict=True):
            with T.vectorized(0, LANES) as lane:
                before = tirx.if_then_else(part == 0, f32(0.0), sums[row, column + lane])
                store(total, before, lane)
        with T.serial(0, depth) as k:
            for row, total in zip(rows, own, strict=True):
                with T.vectorized(0, LANES) as lane:
                    product = x[row, part * depth + k] * weights[k, lane]
                    store(total, total[lane] + product, lane)
        for row, total in zip(rows, own, strict=True):
            with T.vectorized(0, LANES) as lane:
                store(sums, total[lane], row, column + lane)
