"""How products of bytes are divided among blocks and warps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    MOST_WARPS_OF_ONE_TILE,
    TensorCoreShape,
    fills_tensor_cores,
    reads_tiles,
    rows_without_tensor_cores,
    tensor_core_shape,
)
from gemma4_compile.targets.kernels.tiles.staged_shape import staged_shape
from gemma4_compile.targets.tuning import FewRowTensorCoreTuning

CUDA = target_spec("cuda")
# Rows, and groups of 32 channels: from the smallest to those of released sizes.
MATRICES = [(1, 1), (40, 5), (1536, 8), (3072, 192), (5120, 48), (262_144, 48), (5376, 672)]
OWN = CUDA.tuning.few_row_tensor_cores
TUNINGS = [OWN, replace(OWN, multiprocessors=1)]


def layout_of(rows: tuple[int, ...], groups: int, bits: int = 4) -> WeightLayout:
    return WeightLayout(bits, "float16", GROUP, groups * GROUP, rows)


def shape_of(rows: int, groups: int, bits: int = 4, block_rows: int = 0) -> TensorCoreShape:
    return tensor_core_shape(layout_of((rows,), groups, bits), rows, CUDA, block_rows)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("bits", [4, 8, "minima"])
@pytest.mark.parametrize("block_rows", [0, 64])
@pytest.mark.parametrize(("rows", "groups"), MATRICES)
def test_blocks_fit(
    rows: int, groups: int, block_rows: int, bits: int | str, tuning: FewRowTensorCoreTuning
) -> None:
    spec = replace(CUDA, tuning=replace(CUDA.tuning, few_row_tensor_cores=tuning))
    minima = MinimaLayout(4, "uint32", GROUP, groups * GROUP, (rows,))
    layout = layout_of((rows,), groups, bits) if isinstance(bits, int) else minima

    shape = tensor_core_shape(layout, rows, spec, block_rows)

    assert shape.rows == (block_rows or shape.rows)
    assert shape.threads <= spec.max_threads_per_block
    assert shape.shared_bytes <= spec.max_shared_memory_bytes
    assert shape.resident * shape.bands * shape.warps <= MOST_WARPS_OF_ONE_TILE
    assert -(-rows // shape.rows) <= spec.max_grid_dim
    assert (shape.steps - 1) * shape.groups < groups <= shape.steps * shape.groups
    assert shape.is_ragged == (shape.steps * shape.groups != groups)
    assert shape.warps <= shape.steps, "no warp has nothing to do"


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("rows", [(64, 40), (1536, 512, 512), (65_536, 4096)])
def test_a_block_of_several_splits_lies_in_one(
    rows: tuple[int, ...], tuning: FewRowTensorCoreTuning
) -> None:
    spec = replace(CUDA, tuning=replace(CUDA.tuning, few_row_tensor_cores=tuning))
    shape = tensor_core_shape(layout_of(rows, 48), sum(rows), spec)
    assert ROW_ALIGNMENT % shape.rows == 0


@pytest.mark.parametrize(
    ("rows", "groups", "block_rows", "expected"),
    [
        (24_576, 48, 64, (4, 2, 2, 3)),  # tiles, warps, bands, resident; E2B's wide gate and up
        (262_144, 48, 0, (4, 1, 4, 4)),  # its head
        (1536, 192, 0, (2, 12, 1, 1)),  # its down
        (16_384, 168, 0, (4, 3, 2, 2)),  # 31B's q, k and v
        (5376, 672, 0, (3, 6, 1, 2)),  # its down: 224 blocks, where four tiles make 168
    ],
)
def test_released_matrices_have_these_blocks(
    rows: int, groups: int, block_rows: int, expected: tuple[int, int, int, int]
) -> None:
    shape = shape_of(rows, groups, block_rows=block_rows)
    assert (shape.tiles, shape.warps, shape.bands, shape.resident) == expected


def test_steps_of_bytes_have_half_the_groups() -> None:
    four, eight = shape_of(1536, 384), shape_of(1536, 384, bits=8)
    assert eight.groups * 2 == four.groups
    assert eight.steps == 2 * four.steps


@pytest.mark.parametrize(("rows", "fits"), [(256, False), (511, False), (512, True)])
def test_a_matrix_of_few_rows_is_no_product_of_bytes(rows: int, fits: bool) -> None:
    assert fills_tensor_cores(rows, CUDA) == fits


@pytest.mark.parametrize(
    ("rows", "groups", "bits", "direct"),
    [
        (2048, 48, 4, 0),  # E2B's q
        (12_288, 48, 4, 2),  # its gate and up
        (1536, 384, 4, 2),
        (1536, 96, 8, 2),
        (262_144, 48, 4, 0),  # its head
        (43_008, 168, 4, 0),  # 31B's gate and up
    ],
)
def test_matrices_of_medium_size_have_another_kernel_for_one_and_two_rows(
    rows: int, groups: int, bits: int, direct: int
) -> None:
    layout = layout_of((rows,), groups, bits)
    assert rows_without_tensor_cores(layout, CUDA) == direct
    assert reads_tiles(layout, CUDA) == (not direct)


@pytest.mark.parametrize(("rows", "channels"), [(5376, 8192), (8192, 3840), (3840, 8192)])
def test_only_what_comes_by_stages_has_no_other_kernel(rows: int, channels: int) -> None:
    """Of the same matrix with minima weights come through registers."""
    minima = MinimaLayout(4, "uint32", GROUP, channels, (rows,))
    assert staged_shape(minima, rows, CUDA) is None
    assert rows_without_tensor_cores(minima, CUDA) == OWN.direct_rows
    integers = layout_of((rows,), channels // GROUP)
    assert staged_shape(integers, rows, CUDA) is not None
    assert rows_without_tensor_cores(integers, CUDA) == 0


def test_what_is_no_product_of_bytes_reads_no_tiles() -> None:
    assert not reads_tiles(layout_of((256,), 48), CUDA)
    assert not reads_tiles(replace(layout_of((2048,), 48), group_size=64), CUDA)
