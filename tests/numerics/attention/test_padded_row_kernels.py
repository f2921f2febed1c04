"""Chunks with padding: which rows are kept, where they are, and attention beside their copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.device_check.comparison import example_arguments
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.padded_rows import (
    BITS,
    MOST_POSITIONS,
    PADDING,
    KeptRows,
    ShiftedRotary,
)
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

WIDTH = 24
PAIRS = 70


def kept(is_padding: list[bool], first: int, before: int) -> tuple[np.ndarray, ...]:
    """Source, positions, places of copies and the counts of padding, as the definition has them."""
    rows = len(is_padding)
    embeddings = np.zeros((rows, WIDTH), np.float32)
    embeddings[is_padding, 0] = PADDING
    positions = np.array([first, rows, first + rows, 0], np.int32)
    padding = np.zeros((first + rows, 1, 2), np.float16)
    if first:
        padding[first - 1, 0] = divmod(before, 1024)
    source, copies = np.full(rows, -1, np.int32), np.full(1, -1, np.int32)
    found = np.zeros(4, np.int32)
    args = (embeddings, positions, padding, source, found, copies)
    run(KeptRows(CHUNK, WIDTH, "float16"), *args)
    return source, found, copies, padding[first:, 0].astype(int) @ (1024, 1)


def test_rows_move_to_the_end_behind_copies_of_the_first() -> None:
    source, positions, copies, counts = kept([True, False, False, True, True, False], 10, 3000)
    assert source.tolist() == [1, 1, 1, 1, 2, 5]
    assert positions.tolist() == [10 - 3000, 3, 13 - 3000, 0]
    assert copies.tolist() == [3]
    assert counts.tolist() == [3001, 3001, 3001, 3002, 3003, 3003]


def test_as_many_rows_are_counted_as_the_longest_context_has() -> None:
    before = MOST_POSITIONS - 5
    source, positions, _, counts = kept([True, False, True], MOST_POSITIONS - 3, before)
    assert source.tolist() == [1, 1, 1]
    assert positions.tolist() == [2, 1, 3, 0]
    assert counts.tolist() == [before + 1, before + 1, before + 2]


def test_nothing_is_counted_before_the_first_token() -> None:
    source, positions, copies, counts = kept([False, True], 0, 0)
    assert source.tolist() == [0, 0]
    assert positions.tolist() == [0, 1, 1, 0]
    assert copies.tolist() == [1]
    assert counts.tolist() == [0, 1]


def test_a_chunk_of_padding_alone_is_somewhere() -> None:
    source, positions, copies, counts = kept([True, True], 4, 1)
    assert source.tolist() == [0, 0]
    assert positions.tolist() == [3, 0, 3, 0]
    assert copies.tolist() == [2]
    assert counts.tolist() == [2, 3]


def table(first: int, rows: int, frequencies: np.ndarray) -> np.ndarray:
    """Cosines and sines as the native state has them: of angles that are rounded to float32."""
    positions = np.arange(first, first + rows, dtype=np.float32)
    angles = np.outer(positions, frequencies).astype(np.float64)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        *((0, 0), (5, 0), (900, 899), (1880, 760), (131_000, 70_001), (131_000, 3)),
        *((131_075, 3), (262_100, 131_028), (262_120, 1)),  # shifts of 17 bits and more
    ],
)
def test_angles_are_those_of_positions_without_padding(first: int, kept: int) -> None:
    """Also their rounding, which is that of transformers: up to 8e-3 at position 262,000."""
    rows, frequencies = 19, (1e4 ** -(np.arange(PAIRS) / PAIRS)).astype(np.float32)
    turns = np.outer(2.0 ** np.arange(BITS), frequencies.astype(np.float64))
    out = np.zeros((rows, PAIRS, 2), np.float32)
    run(
        ShiftedRotary(CHUNK, PAIRS),
        table(first, rows + 3, frequencies),
        np.array([first, rows, first + rows, 0], np.int32),
        np.array([kept, rows, kept + rows, 0], np.int32),
        np.stack([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32),
        frequencies,
        out,
    )
    np.testing.assert_allclose(out, table(kept, rows, frequencies), rtol=0, atol=2e-6)
    if first == kept:
        np.testing.assert_array_equal(out, table(first, rows, frequencies))


def attention(dim: int, window: int | None, sees_pictures: bool = False) -> PrefillAttention:
    rows = None if window is None else window + 83
    return PrefillAttention(
        CHUNK, 6, 2, dim, window, "float16", rows, "float16", True, sees_pictures
    )


OPERATORS: list[Operator] = [
    KeptRows(CHUNK, WIDTH, "float16"),
    KeptRows(ONE, WIDTH, "float32"),
    ShiftedRotary(CHUNK, PAIRS),
    ShiftedRotary(ONE, 7),
    QkNormRopeCache(CHUNK, 6, 2, 64, 16, 3, 40, 1e-6, True, False, "float16", 97, has_copies=True),
    attention(64, 40),
    attention(256, None),
    attention(64, 9, sees_pictures=True),
]


def of_many_rows(operator: Operator, before: int) -> KernelCase:
    """A case with more copies than a block has rows."""
    args = example_arguments(operator, np.random.default_rng(before), Sizes(75, before, 400, 80))
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
    (changed,) = after[-1:]
    assert not isinstance(changed, int)
    return KernelCase(operator, args, (len(args) - 1,), (changed,))


def of_padding(pattern: str) -> KernelCase:
    """Rows that are kept (k), padding (p), and rows of a tower that overflowed (i, n)."""
    operator = KeptRows(CHUNK, WIDTH, "float16")
    args = list(make_case(operator, 0).args)
    embeddings = np.ones((len(pattern), WIDTH), np.float32)
    embeddings[[letter == "p" for letter in pattern], 0] = PADDING
    embeddings[[letter == "i" for letter in pattern], 0] = np.inf
    embeddings[[letter == "n" for letter in pattern], 0] = np.nan
    args[0], args[3] = embeddings, np.full(len(pattern), -1, np.int32)
    args[1] = np.array([300, len(pattern), 300 + len(pattern), 0], np.int32)
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
    case = KernelCase(operator, tuple(args), (2, 3, 4, 5), ())
    return replace(case, expected=tuple(np.asarray(after[index]) for index in case.changed))


@pytest.mark.dawn
@pytest.mark.parametrize("limits", LIMITS)
def test_every_kernel_computes_its_definition(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    cases += [of_many_rows(OPERATORS[-1], before) for before in (0, 5, 200)]
    cases += [of_many_rows(OPERATORS[5], before) for before in (0, 200)]
    patterns = ("n", "nppi", "k", "p", "pppp", "kkkk", "pkpk", "kppk" * 40, "p" * 99 + "k" * 31)
    cases += [of_padding(pattern) for pattern in patterns]

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
