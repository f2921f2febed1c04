"""Rows of several sequences, of which some have several: all keys are written, then each attends.

Against the launch that does both for one position, which runs for one row after the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import Joint
from gemma4_compile.operators.split_attention import GIVEN, SplitAttention
from tests.marks import slow_unless, under_limits
from tests.numerics.attention.test_attention_kernels import DECODE, check
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.web.dawn import VulkanDriver

MOST = 9
OWNERS = {
    name: operator
    for name, operator in DECODE.items()
    if operator.normed is not None and operator.owns_kv
}
QUICK = ("smallest heads", "12B full")


def parts_of(one: SplitAttention) -> tuple[QkNormRopeCache, SplitAttention]:
    """The two launches that do for rows of several sequences what `one` does for a position."""
    query = one.normed
    assert query is not None
    prepare = QkNormRopeCache(
        rows=Joint(MOST),
        heads=one.heads,
        kv_heads=one.kv_heads,
        head_dim=one.head_dim,
        pairs=query.pairs,
        rotary_offset=query.rotary_offset,
        rotary_total=query.rotary_total,
        eps=query.eps,
        owns_kv=query.owns_kv,
        value_is_key=query.value_is_key,
        cache_dtype=one.cache_dtype,
        cache_rows=one.cache_rows,
    )
    return prepare, replace(one, rows=Joint(MOST), query=GIVEN)


def cases_of(name: str) -> list[KernelCase]:
    """Both launches, of two rows of one sequence and of nine of five."""
    return [
        make_case(operator, seed, 1200, rows)
        for operator in parts_of(DECODE[name])
        for seed, rows in enumerate((2, 9))
    ]


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, OWNERS))
@pytest.mark.parametrize("before", [70, 0])
def test_a_row_sees_those_of_its_sequence_before_it(name: str, before: int) -> None:
    """Results and caches, byte for byte, of five rows of three sequences; others are not read."""
    one = DECODE[name]
    prepare, attend = parts_of(one)
    args = make_case(prepare, 3, before, 5).arrays
    qkv, *norms, positions, rotary, key, value, q = (array.copy() for array in args)
    assert positions[:5, 1].tolist() == [4, 4, 2, 2, 0]
    assert (np.diff(positions[:4, 0])[::2] == 1).all()
    keys, values = key.copy(), value.copy()
    run(prepare, qkv, *norms, positions, rotary, key, value, q)
    found = (
        np.zeros((5, one.splits, one.heads, one.head_dim), one.cache_dtype),
        np.zeros((5, one.splits, one.heads, 2), np.float32),
    )
    run(attend, q, key, value, positions, *found)
    for row, (position, slot) in enumerate(positions[:5].tolist()):
        expected = tuple(np.zeros_like(result[0]) for result in found)
        own = keys[slot].copy(), values[slot].copy()
        place = np.array([position, 1, position + 1, 0], np.int32)
        run(
            one,
            qkv[row : row + 1].copy(),
            *norms,
            place,
            rotary[row : row + 1].copy(),
            *own,
            *expected,
        )
        keys[slot], values[slot] = own
        for result, array in zip(found, expected, strict=True):
            np.testing.assert_array_equal(result[row], array)
    np.testing.assert_array_equal(key, keys)
    np.testing.assert_array_equal(value, values)


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("name", "limits"),
    under_limits(slow_unless(lambda name: name == "smallest heads", OWNERS)),
)
def test_kernels_of_shared_rows(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    check(cases_of(name), limits, lavapipe, tmp_path)
