"""Attention in which pictures see themselves, against NumPy in float64 with an explicit mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile import abi
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.picture_attention import (
    LastVisibleRows,
    example_last_rows,
    example_modality,
)
from gemma4_compile.operators.rows import CHUNK
from tests.numerics.definitions import ROUNDED, run, values

HEADS, KV_HEADS, DIM = 4, 2, 32
TEXT, PICTURE, SOUND = abi.MODALITY_TEXT, abi.MODALITY_MEDIA, abi.MODALITY_AUDIO

# Letters of rows: t text, p picture, s sound.
LETTERS = {"t": TEXT, "p": PICTURE, "s": SOUND}
CHUNKS = (
    "t",
    "p",
    "tttt",
    "pppppp",
    "ttpppptt",
    "pptpppp",
    "tpptsssppt",
    "pppsspppsp",
    "tpppppppppppt",
)


def modality_of(rows: str) -> npt.NDArray[np.int32]:
    return np.array([LETTERS[letter] for letter in rows], np.int32)


def blocks_of(rows: str) -> list[int]:
    """The number of each row's picture, -1 for rows of anything else."""
    numbers, count = [], -1
    for index, letter in enumerate(rows):
        count += letter == "p" and rows[index - 1 : index] != "p"
        numbers.append(count if letter == "p" else -1)
    return numbers


def last_rows(rows: str) -> npt.NDArray[np.int32]:
    found = np.full(len(rows), -7, np.int32)
    run(LastVisibleRows(), modality_of(rows), found)
    return found


@pytest.mark.parametrize("rows", CHUNKS)
def test_last_visible_row_is_that_of_the_picture_or_the_row_itself(rows: str) -> None:
    blocks = blocks_of(rows)
    expected = [
        max(j for j in range(len(rows)) if j == i or (blocks[j] == blocks[i] >= 0))
        for i in range(len(rows))
    ]
    assert last_rows(rows).tolist() == expected


@pytest.mark.parametrize("rows", [1, 2, 3, 19, 64])
def test_examples_are_what_the_definition_makes(rows: int) -> None:
    found = np.zeros(rows, np.int32)
    run(LastVisibleRows(), example_modality(rows), found)
    np.testing.assert_array_equal(found, example_last_rows(rows))


@dataclass(frozen=True)
class Case:
    """A chunk, the positions before it, and a window; the ring has room for both and no more."""

    rows: str
    before: int
    window: int

    @property
    def ring(self) -> int:
        return self.window + len(self.rows) - 1

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        count = len(self.rows)
        return np.array([self.before, count, self.before + count, 0], np.int32)

    def seen(self) -> npt.NDArray[np.bool_]:
        """Return the keys (positions) that each row of the chunk sees."""
        blocks = np.array([-1] * self.before + blocks_of(self.rows))
        query = self.before + np.arange(len(self.rows))[:, None]
        key = np.arange(self.before + len(self.rows))[None, :]
        same_block = (blocks[query] == blocks[key]) & (blocks[query] >= 0)
        mask: npt.NDArray[np.bool_] = (key > query - self.window) & ((key <= query) | same_block)
        return mask


CASES = [
    Case(rows, before, window)
    for rows in CHUNKS
    for before, window in ((0, 3), (0, 40), (5, 4), (29, 8), (50, 1))
]


def inputs(case: Case, dtype: str) -> tuple[npt.NDArray[Any], ...]:
    total = case.before + len(case.rows)
    q = values(1, len(case.rows), HEADS, DIM, deviation=0.5)
    keys, data = (values(seed, total, KV_HEADS, DIM).astype(dtype) for seed in (2, 3))
    return q, keys, data


def in_ring(case: Case, keys: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The ring after all positions; rows that nothing was written to hold a marker."""
    ring = np.full((case.ring, *keys.shape[1:]), 1e3, dtype)
    for position, row in enumerate(keys):
        ring[position % case.ring] = row
    return ring


def attend(
    q: npt.NDArray[Any], keys: npt.NDArray[Any], data: npt.NDArray[Any], seen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    group = HEADS // KV_HEADS
    q, keys, data = (array.astype(np.float64) for array in (q, keys, data))
    keys, data = np.repeat(keys, group, axis=1), np.repeat(data, group, axis=1)
    scores = np.where(seen, np.einsum("shd,thd->hst", q, keys), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("hst,thd->shd", weights, data).reshape(len(q), -1))


def operator_of(case: Case, dtype: str) -> PrefillAttention:
    fields = (CHUNK, HEADS, KV_HEADS, DIM, case.window, dtype, case.ring)
    return PrefillAttention(*fields, out_dtype=dtype, sees_pictures=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pictures_see_themselves_and_the_window_behind(case: Case, dtype: str) -> None:
    q, keys, data = inputs(case, dtype)
    out = np.zeros((len(case.rows), HEADS * DIM), dtype)

    rings = in_ring(case, keys, dtype), in_ring(case, data, dtype)
    run(
        operator_of(case, dtype),
        *(q.reshape(len(q), -1), *rings, case.positions, last_rows(case.rows), out),
    )

    np.testing.assert_allclose(out, attend(q, keys, data, case.seen()), **ROUNDED[dtype])


def test_a_chunk_without_pictures_is_the_causal_one_to_the_bit() -> None:
    case = Case("ttsstt", 21, 7)
    q, keys, data = inputs(case, "float32")
    rings = in_ring(case, keys, "float32"), in_ring(case, data, "float32")
    args = (q.reshape(len(q), -1), *rings, case.positions)
    found, causal = (np.zeros((len(q), HEADS * DIM), np.float32) for _ in range(2))

    run(operator_of(case, "float32"), *args, last_rows(case.rows), found)
    fields = (CHUNK, HEADS, KV_HEADS, DIM, case.window, "float32", case.ring)
    run(PrefillAttention(*fields), *args, causal)

    np.testing.assert_array_equal(found, causal)
