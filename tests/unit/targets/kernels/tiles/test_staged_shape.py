"""Blocks of matrices whose weights come by stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.few_row_gemv import make_few_rows_on_tensor_cores
from gemma4_compile.targets.kernels.tiles.few_row_shape import reads_tiles
from gemma4_compile.targets.kernels.tiles.staged_shape import staged_bytes, staged_shape
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS
from tests.numerics.linear.test_few_row_linear import int8

CUDA = target_spec("cuda")
MULTIPROCESSOR_BYTES = 227 * 1024  # of Hopper's, for blocks that take 1 KiB more each
MULTIPROCESSORS, REGISTERS = 132, 65_536
MATRICES = [block[:3] for block in CUDA.tuning.staged.blocks]


def layout_of(rows: tuple[int, ...], channels: int, bits: int = 4) -> WeightLayout:
    return WeightLayout(bits, "float16", GROUP, channels, rows)


@pytest.mark.parametrize(("rows", "channels", "bits"), MATRICES)
def test_blocks_that_were_measured_fit(rows: int, channels: int, bits: int) -> None:
    layout = layout_of((rows,), channels, bits)
    shape = staged_shape(layout, rows, CUDA)
    assert shape is not None
    sums = shape.warps * BYTE_ROWS * shape.pitch * 4
    assert shape.resident * (staged_bytes(shape) + sums + 1024) <= MULTIPROCESSOR_BYTES
    assert shape.resident * shape.threads * 96 <= REGISTERS, "too few registers a thread"
    is_head = rows > 200_000
    assert is_head or -(-rows // shape.rows) <= shape.resident * MULTIPROCESSORS, "one wave"
    assert shape.warps <= shape.steps, "no warp has nothing to do"
    assert reads_tiles(layout, CUDA)


SPLITS = (8192, 4096, 4096)


@pytest.mark.parametrize(
    ("layout", "is_staged"),
    [
        (layout_of(SPLITS, 5376), True),
        (layout_of((8160, 4128, 4096), 5376), False),  # a block would lie in two
        (layout_of((16_384,), 5376, 8), False),
        (layout_of((16_384,), 5120), False),
        (replace(layout_of((16_384,), 5376), group_size=64), False),
        (MinimaLayout(4, "uint32", GROUP, 5376, (16_384,)), False),
    ],
)
def test_others_are_read_through_registers(layout: WeightLayout, is_staged: bool) -> None:
    assert (staged_shape(layout, layout.rows, CUDA) is not None) == is_staged
    assert staged_shape(layout, layout.rows, replace(CUDA, warpgroups=False)) is None


def test_weights_are_on_their_way_before_the_kernel_waits_for_the_one_before() -> None:
    operator = int8(4, 3840, (30_720,), epilogue=Epilogue.GELU_PAIRS.value)
    text = kernel_source(make_few_rows_on_tensor_cores(operator, CUDA), "one", CUDA)
    (kernel,) = (part for part in text.split("__global__") if "begin_stage_copy((" in part)
    before, after = kernel.split("griddepcontrol.wait")
    assert "(&(q_weight0_ptr[" in before
    assert "words_ptr[" not in before
    assert "words_ptr[" in after
