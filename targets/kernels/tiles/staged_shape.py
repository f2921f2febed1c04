"""The blocks of staged_products.py, which measurement chose (targets/staged_tuning.py)."""

from __future__ import annotations

from math import gcd

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import INTEGERS, WeightLayout
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    PIECE_BYTES,
    STEP_PIECES,
    TensorCoreShape,
    takes_tensor_cores,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS
from gemma4_compile.targets.spec import TargetSpec

X_BYTES = GROUP + 4  # of a group of a row of x: its words and its scale


def staged_shape(
    layout: WeightLayout, rows: int, spec: TargetSpec, block_rows: int = 0
) -> TensorCoreShape | None:
    """The block of a matrix that is read by stages; None for the others.

    Parameters
    ----------
    block_rows : that a block must have; 0 for any number
    """
    block = spec.tuning.staged.block(rows, layout.cols, layout.bits)
    if block is None or not spec.warpgroups:
        return None
    if layout.form != INTEGERS or not takes_tensor_cores(layout):
        return None
    tiles, warps, bands, resident, stages, x_by_steps = block
    shape = TensorCoreShape(
        tiles,
        warps,
        layout.bits,
        2 if layout.dtype == "float16" else 4,
        layout.cols // GROUP,
        bands,
        resident,
        stages=stages,
        x_by_steps=bool(x_by_steps),
    )
    most = spec.asked_shared_memory_bytes or spec.max_shared_memory_bytes
    step = gcd(*layout.split_rows[:-1]) if len(layout.split_rows) > 1 else 0
    fits = (
        staged_bytes(shape) <= most
        and not shape.is_ragged
        and (not block_rows or shape.rows == block_rows)
        and (not step or step % shape.rows == 0)  # a block's rows lie in one split
    )
    return shape if fits else None


def staged_bytes(shape: TensorCoreShape) -> int:
    """Shared memory for weights and rows of x."""
    scales = max(PIECE_BYTES, shape.groups * shape.scale_bytes)
    stage = shape.warp_rows * (STEP_PIECES * PIECE_BYTES + scales)
    x_bytes = BYTE_ROWS * X_BYTES
    if shape.x_by_steps:
        stage += shape.groups * x_bytes
    all_x = 0 if shape.x_by_steps else shape.all_groups * x_bytes
    return shape.bands * shape.warps * shape.stages * stage + all_x
