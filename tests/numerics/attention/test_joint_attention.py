"""Attention of a position in each of several sequences, against that of one sequence at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.rows import ONE, Joint, OneOf
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.types import Array
from tests.marks import slow_unless, under_limits
from tests.numerics.attention.test_attention_kernels import DECODE, PADDED_DECODE, check, decode
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.web.dawn import VulkanDriver

MOST = 9
SHAPES = {
    name: replace(operator, rows=Joint(MOST))
    for name, operator in {
        **DECODE,
        "padded keys": PADDED_DECODE[3],
    }.items()
}
# Of drafts, which have no keys of their own.
SHAPES |= {
    name: replace(decode(*sizes, owns_kv=False), rows=Joint(MOST), behind=1)
    for name, sizes in {
        "drafts of E2B, sliding": (4, 1, 256, 512, 8, 64),
        "drafts of E2B, full": (4, 1, 512, None, 16, 32),
        "small drafts": (4, 2, 8, 40, 3, 4),
    }.items()
}
QUICK = ("smallest heads", "small drafts")


def cases_of(name: str) -> list[KernelCase]:
    """Rows at positions from the begin on to beyond the rings."""
    return [make_case(SHAPES[name], seed, 1200, rows) for seed, rows in enumerate((2, 9))]


def one_row_cases(name: str) -> list[KernelCase]:
    """One of the rows, whose keys and values are arguments of their own."""
    operator = replace(SHAPES[name], rows=OneOf(MOST))
    return [make_case(operator, seed, 1200, rows) for seed, rows in enumerate((2, 9))]


def alone(operator: SplitAttention, arrays: list[Array], row: int) -> list[Array]:
    """The arguments of one sequence."""
    *inputs, positions, rotary, key, value, o_partial, split_lse = arrays
    position, slot = (int(number) for number in positions[row])
    return [
        inputs[0][row : row + 1].copy(),
        *inputs[1:],
        np.array([position, 1, position + 1 - operator.behind, 0], np.int32),
        rotary[row : row + 1].copy(),
        *(key[slot].copy(), value[slot].copy()),
        *(np.zeros_like(o_partial[row]), np.zeros_like(split_lse[row])),
    ]


@pytest.mark.parametrize(
    "name", slow_unless(lambda name: name in (*QUICK, "three vectors a half"), SHAPES)
)
def test_each_row_is_what_its_sequence_has_alone(name: str) -> None:
    """Results, and the keys and values of its slot, byte for byte; no other slot is changed."""
    operator = SHAPES[name]
    case = make_case(operator, 3, 70, 3)
    before = [array.copy() for array in case.arrays]
    arrays = [array.copy() for array in case.arrays]
    run(operator, *arrays)
    key, value, o_partial, split_lse = arrays[-4:]
    assert len({int(slot) for slot in before[-6][:3, 1]}) == 3
    for row in range(3):
        own = alone(operator, before, row)
        run(replace(operator, rows=ONE, behind=0), *own)
        slot = int(before[-6][row, 1])
        found = (key[slot], value[slot], o_partial[row], split_lse[row])
        for expected, array in zip(own[-4:], found, strict=True):
            np.testing.assert_array_equal(array, expected)
    changed = (key != before[-4]).any(axis=(2, 3)).sum(axis=1)
    assert changed.tolist() == [int(operator.owns_kv)] * 3


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK, SHAPES))
def test_a_row_is_what_all_rows_have(name: str) -> None:
    """Byte for byte, in its place alone; nothing is written where there is no such row."""
    operator = SHAPES[name]
    arrays = [array.copy() for array in make_case(operator, 3, 70, 3).arrays]
    *inputs, positions, rotary, key, value, o_partial, split_lse = arrays
    keys, values = key.copy(), value.copy()
    found = np.full_like(o_partial, 7), np.full_like(split_lse, 7)
    apart = replace(operator, rows=OneOf(MOST))
    for row in (2, 0, 1, 3):
        before = tuple(result.copy() for result in found)
        slot = int(positions[min(row, 2), 1])
        own = keys[slot].copy(), values[slot].copy()
        run(apart, *inputs, positions, rotary, *own, row, *found)
        keys[slot], values[slot] = own
        others = np.delete(np.arange(len(o_partial)), [row] if row < 3 else [])
        for old, new in zip(before, found, strict=True):
            np.testing.assert_array_equal(new[others], old[others])
    run(operator, *arrays)
    for expected, array in zip(arrays[-4:], (keys, values, *found), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("name", "limits"), under_limits(slow_unless(lambda name: name in QUICK, SHAPES))
)
def test_kernels_of_several_sequences(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = cases_of(name) + (one_row_cases(name) if name in QUICK else [])
    check(cases, limits, lavapipe, tmp_path)
