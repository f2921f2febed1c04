"""Rows of a table that is elsewhere: a window of them gives what the whole table does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.lookup import OF_PLACES, OF_ROWS, Embedding
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import NATIVE, WORDS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear.test_linear import COLS, GROUP, LAYOUTS, stored
from tests.web.dawn import VulkanDriver

Array = npt.NDArray[Any]
SPLITS = (64, 64, 32)
ROWS = sum(SPLITS)
IDS = np.array([0, 63, 64, 127, 128, 159, 5, ROWS, 200, -1, 5], np.int32)
"""Of every split, the first and the last; outside, too, and one twice."""


def layout(bits: int, dtype: str, splits: tuple[int, ...] = SPLITS) -> WeightLayout:
    return WeightLayout(bits, dtype, GROUP if bits else 0, COLS, splits)


def window(tensors: Sequence[Array], ids: Array, places: Array, rows: int) -> list[Array]:
    """The tensors of a window for each split; rows of no id are what no kernel may read."""
    kinds = len(tensors) // len(SPLITS)
    found = []
    for kind in range(kinds):
        whole = np.concatenate(tensors[kind::kinds])
        unread = 0xEEEEEEEE if whole.dtype == np.uint32 else np.nan
        own = np.full((rows, *whole.shape[1:]), unread, whole.dtype)
        for token, place in zip(ids, places, strict=True):
            if 0 <= token < ROWS:
                own[place] = whole[token]
        found.append(own)
    return found * len(SPLITS)


def looked_up(operator: Embedding, ids: Array, places: Array, tensors: Sequence[Array]) -> Array:
    out = np.zeros((len(ids), COLS), np.float32)
    before = [ids, places][: operator.before_weights]
    run(operator, *before, *tensors, *([out.copy()] if operator.accumulate else []), out)
    return out


def meaning(matrix: Array, ids: Array, scale: float) -> Array:
    inside = (ids >= 0) & (ids < ROWS)
    return np.where(inside[:, None], matrix[np.where(inside, ids, 0)] * scale, 0.0)


@pytest.mark.parametrize(("bits", "dtype"), LAYOUTS)
@pytest.mark.parametrize("table", [OF_ROWS, OF_PLACES])
def test_a_window_gives_the_rows_of_its_table(bits: int, dtype: str, table: str) -> None:
    tensors, matrix = stored(bits, dtype, SPLITS)
    operator = Embedding(CHUNK, layout(bits, dtype), 0, 39.25, False, table)
    order = np.arange(len(IDS), dtype=np.int32)
    places = order if table == OF_ROWS else order[::-1].copy()

    whole = looked_up(operator, IDS, places, tensors)
    found = looked_up(operator, IDS, places, window(tensors, IDS, places, 17))

    np.testing.assert_allclose(whole, meaning(matrix, IDS, 39.25), rtol=2.0**-22)
    assert np.array_equal(found, whole)


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(-3, ROWS + 3), min_size=1, max_size=40),
    spare=st.integers(0, 60),
    seed=st.integers(0, 2**16),
)
def test_any_ids_in_any_places(ids: list[int], spare: int, seed: int) -> None:
    rows = len(ids) + spare
    if rows in SPLITS:
        rows += 1
    tensors, _ = stored(4, "float16", SPLITS)
    tokens = np.array(ids, np.int32)
    places = np.random.default_rng(seed).permutation(rows)[: len(ids)].astype(np.int32)
    operator = Embedding(CHUNK, layout(4, "float16"), 0, 1.0, False, OF_PLACES)

    found = looked_up(operator, tokens, places, window(tensors, tokens, places, rows))

    assert np.array_equal(found, looked_up(operator, tokens, places, tensors))


def test_each_of_several_calls_reads_the_window_for_its_own_ids() -> None:
    tensors, matrix = stored(4, "float16", SPLITS)
    places = np.arange(len(IDS), dtype=np.int32)
    head = Embedding(CHUNK, layout(4, "float16", (64,)), 0, 2.0, False, OF_ROWS)
    rest = Embedding(CHUNK, layout(4, "float16", (64, 32)), 64, 2.0, True, OF_ROWS)
    own = window(tensors, IDS, places, 32 + 1)
    first, out = (np.zeros((len(IDS), COLS), np.float32) for _ in range(2))

    run(head, IDS, *own[:2], first)
    run(rest, IDS, *own[2:], first, out)

    np.testing.assert_allclose(out, meaning(matrix, IDS, 2.0), rtol=2.0**-22)


def cases() -> list[KernelCase]:
    """Whole tables and windows, in the rows' order and in another, of one row and of many."""
    found = []
    for bits, dtype in ((4, "float16"), (0, "float16")):
        tensors, _ = stored(bits, dtype, SPLITS)
        for table in (OF_ROWS, OF_PLACES):
            for rows, ids in ((CHUNK, IDS), (ONE, IDS[5:6])):
                order = np.arange(len(ids), dtype=np.int32)
                places = order if table == OF_ROWS else order[::-1].copy()
                operator = Embedding(rows, layout(bits, dtype), 0, 2.0, False, table)
                expected = looked_up(operator, ids, places, tensors)
                before = [ids, places][: operator.before_weights]
                for held in (tensors, window(tensors, ids, places, 17)):
                    args = (*before, *held, np.zeros_like(expected))
                    found.append(KernelCase(operator, args, (len(args) - 1,), (expected,)))
    rest = Embedding(CHUNK, layout(4, "float16", SPLITS[1:]), 64, 2.0, True, OF_PLACES)
    return [*found, make_case(rest, 3)]


@pytest.mark.dawn
@pytest.mark.parametrize("float16", [NATIVE, WORDS])
def test_kernels_read_windows(float16: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    made = cases()
    spec = replace(target_spec("webgpu"), float16=float16)
    for case, (found,) in zip(made, run_on_dawn(made, spec, lavapipe, tmp_path), strict=True):
        # A product of a weight and two scales, in one of two orders.
        np.testing.assert_allclose(found, case.expected[0], rtol=2.0**-22, err_msg=case.label)
