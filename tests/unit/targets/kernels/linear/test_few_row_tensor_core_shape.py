"""How products of bytes are divided among blocks and warps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.few_row_tensor_core_shape import (
    TensorCoreShape,
    fills_tensor_cores,
    tensor_core_shape,
)
from gemma4_compile.targets.tuning import FewRowTensorCoreTuning

CUDA = target_spec("cuda")
# Rows, and groups of 32 channels: from the smallest to those of released sizes.
MATRICES = [(1, 1), (40, 5), (1536, 8), (3072, 192), (5120, 48), (262_144, 48), (5376, 672)]
TUNINGS = [FewRowTensorCoreTuning(), FewRowTensorCoreTuning(min_blocks=1, row_warps=1 << 30)]


def shape_of(rows: int, groups: int, bits: int = 4, block_rows: int = 0) -> TensorCoreShape:
    layout = WeightLayout(bits, "float16", GROUP, groups * GROUP, (rows,))
    return tensor_core_shape(layout, rows, CUDA, block_rows)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block_rows", [0, 64])
@pytest.mark.parametrize(("rows", "groups"), MATRICES)
def test_blocks_lie_in_a_split_and_in_shared_memory(
    rows: int, groups: int, block_rows: int, bits: int, tuning: FewRowTensorCoreTuning
) -> None:
    spec = replace(CUDA, tuning=replace(CUDA.tuning, few_row_tensor_cores=tuning))
    layout = WeightLayout(bits, "float16", GROUP, groups * GROUP, (rows,))

    shape = tensor_core_shape(layout, rows, spec, block_rows)

    assert ROW_ALIGNMENT % shape.rows == 0
    assert shape.rows >= block_rows
    assert shape.threads <= spec.max_threads_per_block
    assert shape.shared_bytes <= spec.max_shared_memory_bytes
    assert -(-rows // shape.rows) <= spec.max_grid_dim
    assert (shape.steps - 1) * shape.groups < groups <= shape.steps * shape.groups
    assert shape.is_ragged == (shape.steps * shape.groups != groups)


def test_many_warps_share_a_row_of_a_small_matrix() -> None:
    small, large = shape_of(1536, 384), shape_of(43_008, 168)
    assert small.warps > large.warps
    assert small.rows < large.rows


def test_no_warp_has_nothing_to_do_but_for_a_power_of_two() -> None:
    assert shape_of(1536, 8).warps == 2


def test_steps_of_bytes_have_half_the_groups() -> None:
    four, eight = shape_of(1536, 384), shape_of(1536, 384, bits=8)
    assert eight.groups * 2 == four.groups
    assert eight.steps == 2 * four.steps


@pytest.mark.parametrize(
    ("rows", "groups", "bits", "fits"),
    [
        (12_288, 48, 4, True),  # E2B's gate and up, and down
        (1536, 192, 4, True),
        (1536, 384, 4, False),  # down of its wide layers
        (1536, 192, 8, False),  # twice the steps
        (5376, 672, 4, True),  # 31B's down: rows enough, whatever its channels
        (512, 256, 4, True),
        (512, 260, 4, False),
        (256, 48, 8, False),  # the gate of per-layer embeddings: too few rows
    ],
)
def test_few_rows_or_rows_of_many_channels_are_no_products_of_bytes(
    rows: int, groups: int, bits: int, fits: bool
) -> None:
    layout = WeightLayout(bits, "float16", GROUP, groups * GROUP, (rows,))
    assert fills_tensor_cores(layout, rows, CUDA) == fits
