"""Tiles of the matmuls by warpgroups."""

from __future__ import annotations

from gemma4_compile.targets.warpgroup_tuning import WarpgroupTuning


def test_tiles_fill_the_multiprocessors() -> None:
    size = WarpgroupTuning()
    # 31B's gate and up, 12B's gate and up and its down: what an H100 was fastest with.
    assert [size.tile(rows // 128) for rows in (43008, 30720, 3840)] == [192, 256, 128]
