"""Which matrices have tiles of warpgroups."""

from __future__ import annotations

import pytest

from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.targets import cuda
from gemma4_compile.targets.kernels.tiles.warpgroup_tiles import takes_warpgroups

F16, ROWS = "float16", (4096, 512)
TAKEN = {
    "8 bits": WeightLayout(8, F16, 32, 256, ROWS),
    "6 bits": WeightLayout(6, F16, 32, 256, ROWS),
    "4 bits": WeightLayout(4, F16, 32, 256, ROWS),
    "minima, the last block shorter": MinimaLayout(4, "uint32", 32, 384, ROWS),
}
LEFT = {
    "2 bits": WeightLayout(2, F16, 32, 256, ROWS),
    "dense": WeightLayout(0, F16, 0, 256, ROWS),
    "no float16": WeightLayout(4, "float32", 32, 256, ROWS),
    "few rows": MinimaLayout(4, "uint32", 32, 256, (2560,)),
    "an odd row in a split": MinimaLayout(4, "uint32", 32, 256, (4095, 513)),
    "less than whole steps": MinimaLayout(4, "uint32", 32, 352, ROWS),
}


@pytest.mark.parametrize("name", [*TAKEN, *LEFT])
def test_matrices_are_taken_or_left(name: str) -> None:
    layout = {**TAKEN, **LEFT}[name]
    assert takes_warpgroups(layout, cuda.DEFAULT) == (name in TAKEN)
