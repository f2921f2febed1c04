"""Which vectors of int8 meet a stored form, and what its elements mean over row splits."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.quantization.rows import RowScheme
from tests.numerics.definitions import run


@pytest.mark.parametrize(
    ("layout", "by_groups", "by_steps"),
    [
        (WeightLayout(4, "float16", 32, 96, (8,)), True, False),
        (WeightLayout(4, "float32", 96, 96, (8,)), False, True),
        (WeightLayout(2, "float32", 96, 96, (8,)), False, True),
        (WeightLayout(8, "float32", 2**16, 2**16, (8,)), False, True),
        (WeightLayout(8, "float32", 2**17, 2**17, (8,)), False, False),
        (WeightLayout(4, "float32", 112, 112, (8,)), False, False),
        (WeightLayout(4, "float32", 256, 512, (8,)), False, False),
        (WeightLayout(1, "float32", 96, 96, (8,)), False, False),
        (WeightLayout(0, "float32", 0, 96, (8,)), False, False),
    ],
)
def test_int8_meets_scales_of_groups_or_of_rows(
    layout: WeightLayout, by_groups: bool, by_steps: bool
) -> None:
    assert (layout.takes_int8, layout.takes_steps) == (by_groups, by_steps)


def test_elements_are_those_of_the_row_split_that_has_them() -> None:
    scheme = RowScheme(2)
    levels = np.random.default_rng(0).integers(-2, 2, (5, 64)).astype(np.float32)
    layout = scheme.layout(64, (2, 3))
    parts = [scheme.store(rows, name="w", first_row=0) for rows in (levels[:2], levels[2:])]
    found, ids = np.zeros((5, 64), np.float32), np.array([4, 0, 2, 1, 3], np.int32)
    lookup = Embedding(CHUNK, layout, 0, 1.0, False)
    run(lookup, ids, *(array for part in parts for array in part), found)
    assert np.array_equal(found, levels[ids])
