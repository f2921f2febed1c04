"""The lists of tiles that a Mac chooses among: what a threadgroup can hold, and no two alike."""

from __future__ import annotations

import pytest

from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import SimdgroupShape
from gemma4_compile.targets.metal import DEFAULT, TILES
from gemma4_compile.targets.simdgroup_tuning import SimdgroupTuning

SIZES = {"usual": SimdgroupTuning(), **{name: one.simdgroups for name, one in TILES.items()}}


@pytest.mark.parametrize("name", SIZES)
def test_a_tile_is_divided_into_whole_matrices(name: str) -> None:
    size = SIZES[name]
    assert size.rows % size.part_rows == size.columns % size.part_columns == 0
    assert size.expert_columns % size.part_columns == 0
    counted = (size.part_rows, size.part_columns, size.depth, size.keys)
    assert all(count % 8 == 0 for count in counted)
    shape = SimdgroupShape.of(size)
    assert shape.shared_bytes <= DEFAULT.max_shared_memory_bytes
    assert shape.threads <= DEFAULT.max_threads_per_block


def test_no_two_are_alike() -> None:
    assert len(set(SIZES.values())) == len(SIZES)
