"""Kernels in which pictures see themselves, at the edges of tiles, on Dawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile import abi
from gemma4_compile.device_check.comparison import example_arguments
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.picture_attention import (
    LastVisibleRows,
    example_modality,
)
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS, slow_unless, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import CAPACITY, Array, KernelCase, differences
from tests.web.dawn import VulkanDriver

BEFORE = (0, 45, 1200)  # positions before the chunk
ROWS = 75

# Windows of released sizes and their heads; windows shorter than a picture.
SHAPES = {
    name: replace(one, sees_pictures=True)
    for name, one in {
        "12B, 26B": PrefillAttention(CHUNK, 16, 8, 256, 1024, "float16", 1120, "float16"),
        "31B": PrefillAttention(CHUNK, 32, 16, 256, 1024, "float32", 1120),
        "tiny heads": PrefillAttention(CHUNK, 4, 2, 16, 7, "float16", 96),
        "groups of three": PrefillAttention(CHUNK, 6, 2, 64, 9, "float16", 83, "float16"),
        "heads of 26 vectors": PrefillAttention(CHUNK, 7, 1, 104, 40, "float32", 114),
    }.items()
}

RELEASED = ("12B, 26B", "31B")


def runs(*lengths: int) -> npt.NDArray[np.int32]:
    """Rows of text and of pictures in turn."""
    kinds = (abi.MODALITY_TEXT, abi.MODALITY_MEDIA)
    return np.concatenate([np.full(n, kinds[i % 2], np.int32) for i, n in enumerate(lengths)])


CHUNKS = {
    "one picture": runs(0, ROWS),
    "a picture within text": runs(5, 49, 21),
    "pictures at both ends": runs(0, 33, 1, 41),
    "many small ones": runs(*([1, 2, 3, 1] * 11)),
    "with a sound": example_modality(19),
    "a single row": runs(0, 1),
}


def picture_case(
    operator: PrefillAttention, modality: npt.NDArray[np.int32], before: int
) -> KernelCase:
    """Attention of a chunk of given rows."""
    sizes = Sizes(len(modality), before, CAPACITY, len(modality))
    args = example_arguments(operator, np.random.default_rng(before), sizes)
    names = [param.name for param in operator.prim_func().params]
    ends = args[names.index("last_rows")]
    assert not isinstance(ends, int)
    run(LastVisibleRows(), modality, ends)
    return with_results(KernelCase(operator, args, (len(args) - 1,), ()))


def rows_case(modality: npt.NDArray[np.int32]) -> KernelCase:
    """The last row that each row of a chunk sees."""
    args: tuple[Array, ...] = (modality, np.full(len(modality), -1, np.int32))
    return with_results(KernelCase(LastVisibleRows(), args, (1,), ()))


def with_results(case: KernelCase) -> KernelCase:
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in case.args)
    run(case.operator, *after)
    results = (after[index] for index in case.changed)
    return replace(case, expected=tuple(array for array in results if not isinstance(array, int)))


def cases_of(name: str) -> list[KernelCase]:
    """A shape's attention of every chunk, at every number of positions before it."""
    return [
        picture_case(SHAPES[name], modality, before)
        for modality in CHUNKS.values()
        for before in BEFORE
    ]


def one_of_each(name: str) -> list[KernelCase]:
    """A shape's attention of every chunk, and after every number of positions."""
    turns = zip(CHUNKS.values(), BEFORE * len(CHUNKS), strict=False)
    return [picture_case(SHAPES[name], *of) for of in turns]


def all_rows_cases() -> list[KernelCase]:
    return [rows_case(modality) for modality in (*CHUNKS.values(), runs(3, 1120, 1))]


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("name", "limits"), under_limits(slow_unless("groups of three".__eq__, SHAPES))
)
def test_a_chunk_with_pictures(
    name: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = one_of_each(name) if name in RELEASED else cases_of(name)
    spec = target_spec("webgpu", limits)
    wrong = differences(cases, run_on_dawn(cases, spec, lavapipe, tmp_path))
    assert not wrong, "\n".join(wrong)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", LIMITS)
def test_ends_of_pictures(limits: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec, cases = target_spec("webgpu", limits), all_rows_cases()
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    for case, (found,) in zip(cases, results, strict=True):
        np.testing.assert_array_equal(found, case.expected[0])
