"""Matrix times a few packed rows on tensor cores: each weight is read and decoded once for eight.

Definition: `Int8Linear.definition` in gemma4_compile/operators/int8_linear.py, of a symbolic number
of rows. The product: byte_products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.few_row_linear import FewRowLinear, Int8FewRowLinear
from gemma4_compile.operators.int8_linear import PACKED, PACKED_ROWS, takes_int8
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import bind, function, i32, store
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import Block, launch, shared
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue, gate_args
from gemma4_compile.targets.kernels.common.tensor_cores import BYTE_ROWS
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.byte_products import (
    Rows,
    Warp,
    Weights,
    multiply,
    store_sums,
)
from gemma4_compile.targets.kernels.linear.few_row_quantize import matmul_results
from gemma4_compile.targets.kernels.linear.few_row_tensor_core_shape import (
    fills_tensor_cores,
    tensor_core_shape,
)
from gemma4_compile.targets.kernels.linear.gemm import left_args
from gemma4_compile.targets.kernels.linear.packed_products import NONE, pack_products
from gemma4_compile.targets.spec import TargetSpec


def fits_tensor_cores(operator: FewRowLinear | Int8FewRowLinear, spec: TargetSpec) -> bool:
    """Return whether the target has them, and bytes on both sides that fill them."""
    layout = operator.layout
    are_bytes = operator.in_dtype == PACKED and takes_int8(layout)
    return spec.tensor_cores and are_bytes and fills_tensor_cores(layout, layout.rows, spec)


def make_few_row_tensor_cores(operator: Int8FewRowLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = epilogue(sum_k x[i, k] W[r, k])`` for a few i.

    Grid: rows of x / 8 x W's rows / those of a block, so that blocks which read the same weights
    run at the same time. Shared: what lanes hand on, the warps' sums, and a group of products of
    each row where they are packed. Definition: the operator's `definition`.
    """
    n, rows, layout = symbolic_rows(operator.rows), operator.layout.rows, operator.layout
    packs = operator.packed_out
    shape = tensor_core_shape(layout, rows, spec, PACKED_ROWS if packs else 0)
    parts = tirx.floordiv(n + BYTE_ROWS - 1, BYTE_ROWS)
    with function(scheduled=True) as build:
        x = left_args(build, (n, operator.cols), PACKED, True)
        reader = WeightReader(build, layout)
        gate, layer = gate_args(build, operator, n)
        results = matmul_results(build, "y", (n, operator.outputs), packs)
        with launch(shape.threads, parts, -(-rows // shape.rows)) as (part, index, thread):
            begin, first = bind(i32(part) * BYTE_ROWS), bind(index * shape.rows)
            count = bind(tirx.min(i32(n) - begin, BYTE_ROWS))  # the others are other blocks'
            warp, block = Warp(shape, thread), Block(thread, shape.threads, spec.simd_width)

            def row_of(row: Expr) -> Expr:
                return tirx.min(first + row, rows - 1) if rows % shape.rows else first + row

            weights = Weights(warp, reader, first, row_of)
            # Sums of rows of x that there are not are not stored.
            left = Rows(warp, x, lambda i: begin + tirx.min(i, count - 1), layout.interleaved)
            sums = multiply(warp, weights, left)
            values = shared((BYTE_ROWS * GROUP,)) if packs else None

            def finish(i: Expr, row: Expr, added: Sequence[Expr]) -> None:
                if values is not None:
                    product = gelu_tanh(added[0]) * added[1]
                    store(values, product, i * GROUP + tirx.floordiv(row, 2))
                    return
                y, at = results[0], bind(first + row)
                apply_epilogue(operator, y, bind(begin + i), at, added, gate, layer, rows)

            pairs = operator.epilogue == Epilogue.GELU_PAIRS.value
            store_sums(warp, block, sums, lambda i: i < count, 2 if pairs else 1, finish)
            if values is not None:

                def packed_row(i: Expr) -> Expr:
                    return tirx.Select(i < count, begin + i, i32(NONE))

                order = operator.interleaved_out
                pack_products(block, values, results, index, order, packed_row)
    return build.result
