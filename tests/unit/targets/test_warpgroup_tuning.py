"""Tiles of the matmuls by warpgroups."""

from __future__ import annotations

from gemma4_compile.targets.warpgroup_tuning import WarpgroupTuning


def test_tiles_fill_the_multiprocessors() -> None:
    size = WarpgroupTuning()
    # 31B's gate and up and its down, E2B's widest, 12B's down: what an H200 was fastest with, with
    # minima, of 512 rows; the last one an H100.
    assert [size.tile(rows // 128) for rows in (43008, 5376, 24576, 3840)] == [256, 192, 256, 128]


def test_fewer_rows_have_the_smaller_tile_while_it_is_faster() -> None:
    size = WarpgroupTuning()
    # Of the same: 252 us in place of 331 for 224 rows of down, 135 in place of 113 of q, k and v.
    most = {rows: size.small_tile(rows // 128)[1] for rows in (43008, 5376, 16384, 3840)}
    assert most == {43008: 128, 5376: 384, 16384: 128, 3840: 0}
