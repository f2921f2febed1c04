"""Which matrices of a few rows are read by stages."""

from __future__ import annotations

from gemma4_compile.targets.staged_tuning import StagedTuning

OWN = StagedTuning(((64, 256, 4, 4, 2, 1, 1, 3, 0), (64, 256, 8, 2, 1, 1, 2, 2, 1)))


def test_a_matrix_has_the_block_of_its_rows_channels_and_bits() -> None:
    assert OWN.block(64, 256, 4) == (4, 2, 1, 1, 3, 0)
    assert OWN.block(64, 256, 8) == (2, 1, 1, 2, 2, 1)


def test_others_have_none() -> None:
    assert OWN.block(256, 64, 4) is None
    assert StagedTuning().block(64, 256, 4) is None
