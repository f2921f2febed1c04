"""The tiles of packed rows: what a target has room for, and where rows lie in shared memory."""

from __future__ import annotations

from itertools import product

import pytest

from gemma4_compile.targets import target_spec
from gemma4_compile.targets.byte_tile_tuning import ByteTileTuning
from gemma4_compile.targets.kernels.tiles.byte_tile_shape import ByteTileShape

SIZES = ByteTileTuning()
TILES = {"narrow": SIZES.narrow, "wide": SIZES.wide, "experts": SIZES.experts}


@pytest.mark.parametrize("name", TILES)
def test_every_form_of_every_tile_fits(name: str) -> None:
    spec = target_spec("cuda")
    for cols, minima in product((704, 5376), (False, True)):
        shape = ByteTileShape.of(TILES[name], cols, spec.max_shared_memory_bytes, minima)
        assert shape.fits(spec), shape
        assert shape.groups == (4 if cols % 128 == 0 else 2)


def test_a_matrix_of_few_rows_has_the_narrow_tile() -> None:
    assert SIZES.tile(SIZES.narrow_to) is SIZES.narrow
    assert SIZES.tile(SIZES.narrow_to + 1) is SIZES.wide


@pytest.mark.parametrize("cols", [64, 128])
def test_pieces_have_places_of_their_own_in_different_banks(cols: int) -> None:
    shape = ByteTileShape.of(SIZES.wide, cols, 48 << 10)
    pieces = range(shape.row_pieces)
    places = {(row, piece): shape.place(row, piece) for row in range(64) for piece in pieces}
    assert sorted(places.values()) == list(range(64 * shape.row_pieces))
    for first, piece in product(range(0, 64, 8), pieces):  # what eight lanes load at a time
        assert len({places[first + row, piece] % 8 for row in range(8)}) == 8
