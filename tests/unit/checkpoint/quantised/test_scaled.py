"""Scales and zero points by block, next to the whole matrices that they stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.scaled import Scaled
from tests.unit.checkpoint.quantised.files import written

ROWS, COLUMNS = 14, 20


@pytest.mark.parametrize("block", [(1, 5), (1, 20), (4, 8), (14, 20), (3, 7)])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_blocks(block: tuple[int, int], has_zeros: bool, tmp_path: Path) -> None:
    height, width = block
    shape = -(-ROWS // height), -(-COLUMNS // width)
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (ROWS, COLUMNS)).astype(np.float32)
    scales, zeros = (random.random(shape).astype(np.float32) for _ in range(2))
    stored = written(tmp_path, {"codes": codes, "scales": scales, "zeros": zeros})
    scaled = Scaled(
        stored["codes"], stored["scales"], height, width, stored["zeros"] if has_zeros else None
    )
    rows, columns = np.arange(ROWS) // height, np.arange(COLUMNS) // width
    expected = codes - zeros[rows][:, columns] * has_zeros
    expected = expected.astype(np.float32) * scales[rows][:, columns]
    for begin, end in ((0, ROWS), (2, 3), (3, 9), (13, ROWS)):
        assert np.array_equal(scaled.read_rows(begin, end), expected[begin:end])


def test_what_is_no_number_in_a_scale_is_none_in_a_weight(tmp_path: Path) -> None:
    scales = np.array([[np.inf, np.nan, 1, 3e38]], np.float32)
    codes = np.array([[0, 1, 2, 3, 4, 5, 6, 7]], np.float32)
    stored = written(tmp_path, {"codes": codes, "scales": scales})
    rows = Scaled(stored["codes"], stored["scales"], 1, 2).read_rows(0, 1)
    assert np.isfinite(rows).tolist() == [[False, False, False, False, True, True, False, False]]
