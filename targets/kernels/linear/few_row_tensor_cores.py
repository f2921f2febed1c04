"""Matrix times a few packed rows on tensor cores: each weight is read and decoded once for eight.

Definition: `Linear.definition` in gemma4_compile/operators/linear.py, of a symbolic number
of rows. The product: byte_products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, PACKED_ROWS
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import bind, i32, store
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident, shared
from gemma4_compile.targets.kernels.linear.few_row_matmul import FewRowMatmul
from gemma4_compile.targets.kernels.prologues.packed_products import NONE
from gemma4_compile.targets.kernels.prologues.packed_rows import are_tiled
from gemma4_compile.targets.kernels.tiles.byte_products import multiply, store_sums
from gemma4_compile.targets.kernels.tiles.byte_rows import Rows
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    TensorCoreShape,
    fills_tensor_cores,
    takes_tensor_cores,
    tensor_core_shape,
)
from gemma4_compile.targets.kernels.tiles.minima_products import weights_of
from gemma4_compile.targets.kernels.tiles.staged_products import StagedWeights, multiply_staged
from gemma4_compile.targets.kernels.tiles.staged_rows import Memory, StagedRows
from gemma4_compile.targets.kernels.tiles.staged_shape import staged_shape
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS
from gemma4_compile.targets.kernels.tiles.warpgroups import has_warpgroups
from gemma4_compile.targets.kernels.tiles.warps import Warp
from gemma4_compile.targets.spec import TargetSpec


def fits_tensor_cores(operator: Linear, spec: TargetSpec) -> bool:
    """Return whether the target has them, and bytes on both sides that fill them."""
    layout = operator.layout
    are_bytes = operator.in_dtype == PACKED and takes_tensor_cores(layout)
    return spec.tensor_cores and are_bytes and fills_tensor_cores(layout.rows, spec)


def multiply_on_tensor_cores(matmul: FewRowMatmul, spec: TargetSpec) -> None:
    """Launch the kernel; of two the host chooses by the GPU.

    Grid: rows of x / 8 x W's rows / those of a block, so that blocks which read the same weights
    run at the same time. Shared: what lanes hand on, or weights and rows of x on their way, the
    warps' sums, and a group of products of each row where they are packed.
    """
    layout, block_rows = matmul.operator.layout, PACKED_ROWS if matmul.packs else 0
    own = tensor_core_shape(layout, layout.rows, spec, block_rows)
    staged = staged_shape(layout, layout.rows, spec, block_rows)
    if staged is None:
        _multiply(matmul, own, spec)
    elif not spec.has_older_images:
        _multiply(matmul, staged, spec)
    else:
        with T.If(has_warpgroups()):
            with T.Then():
                _multiply(matmul, staged, spec)
            with T.Else():
                _multiply(matmul, own, spec)


def _multiply(matmul: FewRowMatmul, shape: TensorCoreShape, spec: TargetSpec) -> None:
    n, layout, packs = matmul.n, matmul.operator.layout, matmul.packs
    rows = layout.rows
    parts = tirx.floordiv(n + BYTE_ROWS - 1, BYTE_ROWS)
    with launch(shape.threads, parts, -(-rows // shape.rows)) as ids, resident(shape.resident):
        part, index, thread = ids
        begin, first = bind(i32(part) * BYTE_ROWS), bind(index * shape.rows)
        count = bind(tirx.min(i32(n) - begin, BYTE_ROWS))  # the others are other blocks'
        warp, block = Warp(shape, thread), Block(thread, shape.threads, spec.simd_width)

        def row_of(row: Expr) -> Expr:
            return tirx.min(first + row, rows - 1) if rows % shape.rows else first + row

        def row_of_x(row: Expr) -> Expr:
            return begin + tirx.min(row, count - 1)

        # Sums of rows of x that there are not are not stored.
        if shape.stages:
            scope = "shared.dyn" if spec.asked_shared_memory_bytes else "shared"
            memory = Memory(scope)
            staged = StagedWeights(warp, matmul.weights, first, row_of, memory)
            own = (warp, block, matmul.x, count, lambda i: bind(begin + i), layout)
            rows_of_x = StagedRows(*own, memory, staged.size)
            memory.allocate(staged.size + rows_of_x.size)
            sums = multiply_staged(warp, staged, rows_of_x)
        else:
            weights = weights_of(warp, matmul.weights, first, row_of)
            sums = multiply(warp, weights, Rows(warp, matmul.x, row_of_x, layout))
        values = shared((BYTE_ROWS * GROUP,)) if packs else None

        def finish(i: Expr, row: Expr, added: Sequence[Expr]) -> None:
            if values is None:
                matmul.store(bind(begin + i), bind(first + row), added)
            else:
                product = gelu_tanh(added[0]) * added[1]
                store(values, product, i * GROUP + tirx.floordiv(row, 2))

        store_sums(warp, block, sums, lambda i: i < count, matmul.sums_a_result, finish)
        if values is not None and are_tiled(matmul.results[0]):
            matmul.pack(block, values, index, lambda i: begin + i, count)
        elif values is not None:

            def packed_row(i: Expr) -> Expr:
                return tirx.Select(i < count, begin + i, i32(NONE))

            matmul.pack(block, values, index, packed_row)
