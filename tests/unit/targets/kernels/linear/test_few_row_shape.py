"""How matmuls of a few rows are divided among blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.few_row_shape import (
    MIN_LANES,
    OWN_ROWS,
    few_row_shape,
)
from gemma4_compile.targets.tuning import FewRowTuning

# Rows, and units of 8 or groups of 32 channels: from the smallest to those of released sizes.
MATRICES = [(1, 1), (40, 5), (1536, 8), (3072, 192), (12288, 48), (262_144, 48), (5376, 2688)]
TUNINGS = [FewRowTuning(), FewRowTuning(threads=256, items_per_lane=64), FewRowTuning(min_blocks=1)]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize(("target", "limits"), [("webgpu", "compat"), ("cuda", "default")])
@pytest.mark.parametrize(("rows", "items"), MATRICES)
def test_tiles_lie_in_a_split_and_sums_in_shared_memory(
    rows: int, items: int, target: str, limits: str, tuning: FewRowTuning
) -> None:
    spec = target_spec(target, limits)
    spec = replace(spec, tuning=replace(spec.tuning, few_rows=tuning))

    shape = few_row_shape(rows, items, 9, spec)

    assert ROW_ALIGNMENT % shape.block.tile == 0
    assert shape.block.tile == shape.block.slots * OWN_ROWS
    assert shape.block.threads % shape.block.lanes == 0
    assert shape.block.threads <= spec.max_threads_per_block
    assert 1 <= shape.at_once <= 9
    assert shape.sums.sum_bytes <= spec.max_shared_memory_bytes


def test_a_small_matrix_has_smaller_blocks() -> None:
    spec = target_spec("cuda")
    small, large = (few_row_shape(rows, 48, 9, spec).block for rows in (2560, 262_144))
    assert small.threads < large.threads == spec.tuning.few_rows.threads
    assert few_row_shape(2560, 48, 2, spec).at_once == 2


@pytest.mark.parametrize("channels", [1536, 2560, 2816, 3840, 5376])
@pytest.mark.parametrize(("target", "limits"), [("webgpu", "default"), ("cuda", "default")])
def test_a_vocabulary_with_long_rows_fits_the_grid(channels: int, target: str, limits: str) -> None:
    spec, rows = target_spec(target, limits), 262_144

    shape = few_row_shape(rows, channels // 8, 5, spec)

    assert -(-rows // shape.block.tile) <= spec.max_grid_dim
    assert shape.block.tile <= ROW_ALIGNMENT
    assert shape.block.lanes >= MIN_LANES


def test_many_lanes_share_a_row_of_the_smallest() -> None:
    spec = target_spec("cuda")
    few, many = (few_row_shape(rows, 48, 9, spec).block for rows in (256, 262_144))
    assert few.lanes > many.lanes
    assert few.lanes <= min(few.threads, 64), "each has an item, but for what fills a power of two"
