"""Attention of a chunk in subgroup matrices, emulated, against the definition, on Dawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.heads import CachePart
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention.subgroup_matrix_chunk import SLACK
from gemma4_compile.targets.kernels.attention.subgroup_matrix_chunk_shape import (
    SubgroupChunkShape,
    fits_subgroup_matrices,
    subgroup_chunk_heads,
    subgroup_chunk_shape,
)
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import SIDE
from tests.metal.test_mistakes import other, without
from tests.numerics.attention.test_picture_attention_kernels import CHUNKS as MODALITIES
from tests.numerics.attention.test_picture_attention_kernels import picture_case
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.emulated_matrices import emulated, emulated_spec
from tests.numerics.kernel_cases import Array, KernelCase, differences, make_case
from tests.numerics.tensor_cores import CHUNKS, PICTURES
from tests.web.dawn import VulkanDriver

SPEC = target_spec("webgpu", "h200-matrices")
SHORT = replace(
    CHUNKS["groups of three"], heads=2, kv_heads=1, head_dim=32, window=70, cache_rows=140
)
ROWS, BEFORE, KEYS = 19, 1200, 32  # two blocks of rows, four tiles of keys
LOUDER = 8  # than the examples' queries: scores rise by more than the slack
# Each with another division of the work, and rows. That of E2B's sliding layers has the blocks of
# "copies" and the channels of 31B's.
DIVISIONS = {
    "E2B full": (CHUNKS["E2B full"], 5),
    "31B sliding, fewer heads": (replace(CHUNKS["31B sliding"], heads=16, kv_heads=2), 9),
    "copies": (CHUNKS["copies"], 9),
}


def check(cases: Sequence[KernelCase], driver: VulkanDriver, folder: Path) -> None:
    results = run_on_dawn(cases, emulated_spec(), driver, folder, optimised=True)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
def test_a_small_chunk(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    check([make_case(SHORT, 1, BEFORE, rows=ROWS)], lavapipe, tmp_path)


@pytest.mark.dawn
@pytest.mark.slow
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_chunk(name: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    operator, rows = DIVISIONS[name]
    before = 77 if operator.window is None else BEFORE
    check([make_case(operator, 1, before, rows=rows)], lavapipe, tmp_path)


@pytest.mark.dawn
@pytest.mark.slow
def test_a_chunk_with_pictures_and_one_at_the_beginning(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    operator = replace(PICTURES["groups of three"], head_dim=32)
    picture = picture_case(operator, MODALITIES["a picture within text"], 45)
    check([picture, make_case(SHORT, 2, 0, rows=ROWS)], lavapipe, tmp_path)


def with_rising_scores(operator: PrefillAttention, seed: int) -> KernelCase:
    """A case in which sums are rescaled, with queries that float16 has exactly."""
    case = make_case(operator, seed, BEFORE, rows=ROWS)
    q, *others = case.arrays
    louder = (q * LOUDER).astype(np.float16).astype(q.dtype)
    after = [louder, *(array.copy() for array in others)]
    run(operator, *after)
    changed = replace(case, args=(louder, *others), expected=(after[-1],))
    rises = rises_after_the_first_tile(changed)
    assert (rises > SLACK).sum() > ROWS // 2, "or nothing is shown"
    return changed


def rises_after_the_first_tile(case: KernelCase) -> Array:
    """Of the highest score of each row, over that of the first tile, by plain NumPy."""
    operator, (q, key, *_) = case.operator, case.arrays
    assert isinstance(operator, PrefillAttention)
    assert operator.window is not None
    rises = []
    for row, queries in enumerate(q.reshape(ROWS, operator.heads, operator.head_dim)):
        last = BEFORE + row
        seen = np.arange(last - operator.window + 1, last + 1)
        keys = key[seen % key.shape[0], 0].astype(np.float32)
        in_first = seen < BEFORE - operator.window + 1 + KEYS
        for query in queries:
            scores = keys @ query
            rises.append(scores.max() - scores[in_first].max())
    return np.array(rises)


BARRIER = "workgroupBarrier();"
MISTAKES: dict[str, Callable[[str], str]] = {
    "no barrier before queries are read": without(BARRIER, 0),
    "no barrier before keys take the queries' place": without(BARRIER, 1),
    "no barrier before the first keys are read": without(BARRIER, 2),
    "no barrier before scores are read": without(BARRIER, 3),
    "no barrier before sums are scaled": without(BARRIER, 5),
    "no barrier before scaled sums are loaded": without(BARRIER, 7),
    "no barrier before keys take the values' place": without(BARRIER, 13),
    "no barrier before keys are read": without(BARRIER, 14),
    "no barrier before results are read": without(BARRIER, 16),
    "keys as values lie": other(r"matrix_right\(", "matrix_right_transposed("),
    "values as keys lie": other(r"matrix_right_transposed\(", "matrix_right("),
    "scores at another pitch": other(r", 10i\);", ", 8i);"),
    "sums that keep their scale": other(r"exp\(\((\w+)\[0i\] - \w+\[0i\]\)\)", "1.0f"),
    "sums that no group takes back": other(r"gemma4_matrix_load\(.*", ""),
    "a maximum of half a row": other(r"max\((.*), subgroupShuffleXor\(.*\)\)", r"\1"),
    "keys that a row does not see": other(r"(condval\w* =) -3.000000e\+38f", r"\1 300.0f"),
}


@pytest.mark.dawn
@pytest.mark.slow
def test_sums_are_rescaled_where_scores_rise_and_mistakes_are_found(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    changes = [lambda text: text, *MISTAKES.values()]
    # Each in a kernel of its own: windows differ.
    cases = [
        with_rising_scores(replace(SHORT, window=70 + index), index)
        for index in range(len(changes))
    ]

    def write(text: str) -> str:
        (number,) = re.findall(r"^fn prefill_attention(\d*)_kernel\($", text, re.MULTILINE)
        changed = changes[int(number or 0)](text)
        assert number == "" or changed != text, list(MISTAKES)[int(number) - 1]
        return emulated(changed)

    results = run_on_dawn(cases, emulated_spec(), lavapipe, tmp_path, write=write)

    wrong = [
        bool(differences([case], [result])) for case, result in zip(cases, results, strict=True)
    ]
    assert not wrong[0]
    missed = [name for name, found in zip(MISTAKES, wrong[1:], strict=True) if not found]
    assert not missed


def test_divisions_fit() -> None:
    every = subgroup_chunk_heads(SPEC)
    assert set(every) == {*range(32, 513, 32)} - {352, 416}, "eleven and thirteen parts"
    for dim in every:
        for heads in (1, 8, 32):
            shape = subgroup_chunk_shape(dim, heads, SPEC)
            assert shape is not None
            assert shape.shared_bytes <= SPEC.max_shared_memory_bytes
            assert shape.threads <= SPEC.max_threads_per_block
            assert shape.key_parts * shape.score_parts == shape.parts
            assert shape.score_keys % SIDE == shape.score_channels % SIDE == 0
            assert shape.channels % SIDE == 0
            assert shape.channels <= 128
            assert shape.score_channels <= 256
            assert shape.rows * shape.sharing <= shape.threads, "every row has threads"
    released = {
        (dim, heads): subgroup_chunk_shape(dim, heads, SPEC)
        for dim in (256, 512)
        for heads in (8, 32)
    }
    assert released == {
        (256, 8): SubgroupChunkShape(32, 256, 2, 32),
        (256, 32): SubgroupChunkShape(64, 256, 2, 32),
        (512, 8): SubgroupChunkShape(32, 512, 4, 16),
        (512, 32): SubgroupChunkShape(32, 512, 4, 16),
    }


def test_what_is_left_to_the_other_kernel() -> None:
    chunk = CHUNKS["E2B full"]
    assert fits_subgroup_matrices(chunk, SPEC)
    assert not fits_subgroup_matrices(chunk, target_spec("webgpu", "h200"))
    assert not fits_subgroup_matrices(replace(chunk, rounds_to_halves=False), SPEC)
    unrounded = replace(chunk, rounds_to_halves=False, part=CachePart(1, 2))
    assert not fits_subgroup_matrices(unrounded, SPEC)
    assert not fits_subgroup_matrices(replace(chunk, head_dim=264), SPEC)
