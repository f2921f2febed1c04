"""Kernels that read float16 weights as 32-bit words, on Dawn in Node.

No value is rounded: a float32 holds every half, the smallest ones, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import link, target_spec
from gemma4_compile.targets.spec import WORDS
from tests.numerics.dawn_kernels import cases_executable, run_on_dawn
from tests.numerics.kernel_cases import Array, KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

SPEC = replace(target_spec("webgpu"), float16=WORDS)
FINITE = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = FINITE[np.isfinite(FINITE)]


def looked_up(table: Array, *split_rows: int) -> KernelCase:
    """Every row of a dense table, which is stored in parts."""
    rows, cols = table.shape
    layout = WeightLayout(0, "float16", 0, cols, split_rows or (rows,))
    ends = np.cumsum(layout.split_rows)[:-1]
    ids, out = np.arange(rows, dtype=np.int32), np.zeros((rows, cols), np.float32)
    return KernelCase(
        operator=Embedding(CHUNK, layout, 0, 1.0, False),
        args=(ids, *map(np.ascontiguousarray, np.split(table, ends)), out),
        changed=(1 + len(layout.split_rows),),
        expected=(table.astype(np.float32),),
    )


def with_scales(case: KernelCase, scales: Array) -> KernelCase:
    """A matmul of 4-bit weights with these scales; the sum is made anew in float64."""
    x, words, _, out = case.arrays
    assert isinstance(case.operator, Linear)
    layout = case.operator.layout
    integers = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.int32)
    steps = np.repeat(scales.astype(np.float64), layout.group_size, axis=1)
    weights = (integers.reshape(layout.rows, layout.cols) - layout.packing.zero_point) * steps
    expected = (x.astype(np.float64) @ weights.T).astype(np.float32)
    return replace(case, args=(x, words, scales, out), changed=(3,), expected=(expected,))


@pytest.mark.parametrize("driver", ["swiftshader", "lavapipe"])
def test_every_finite_half_is_itself(
    driver: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tables = [FINITE.reshape(-1, cols) for cols in (64, 62, 31)]  # by words, by pairs, one by one
    cases = [looked_up(table) for table in tables]

    results = run_on_dawn(cases, SPEC, request.getfixturevalue(driver), tmp_path)

    for case, (found,) in zip(cases, results, strict=True):
        np.testing.assert_array_equal(found.view(np.uint32), case.expected[0].view(np.uint32))


def test_parts_of_odd_numbers_of_halves_have_their_last_one(
    swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    table = FINITE[: 31 * 27].reshape(27, 31)
    case = looked_up(table, 9, 11, 7)

    ((found,),) = run_on_dawn([case], SPEC, swiftshader, tmp_path)

    np.testing.assert_array_equal(found, case.expected[0])


OPERATORS = [
    # Rows of 3 scales: every other row begins in the middle of a word. A part of an odd number.
    *(
        Linear(rows, WeightLayout(4, "float16", 32, 96, (64, 29)), "float32")
        for rows in (ONE, CHUNK)
    ),
    *(
        Linear(rows, WeightLayout(8, "float16", 32, 96, (64, 29)), "float32")
        for rows in (ONE, CHUNK)
    ),
    # Dense rows by vectors, and rows of which every other one begins at an odd half.
    Linear(ONE, WeightLayout(0, "float16", 0, 96, (64, 40)), "float32"),
    Linear(CHUNK, WeightLayout(0, "float16", 0, 51, (64, 29)), "float32"),
    BoundedLinear(CHUNK, WeightLayout(0, "float16", 0, 66, (96,)), "float32", clipped=True),
    Embedding(CHUNK, WeightLayout(4, "float16", 32, 96, (64, 29)), 0, 2.0, False),
]


def test_matrices_of_all_forms_are_read_right(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    results = run_on_dawn(cases, SPEC, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_the_smallest_scales_count(swiftshader: VulkanDriver, tmp_path: Path) -> None:
    operator = Linear(ONE, WeightLayout(4, "float16", 32, 96, (64,)), "float32")
    case = make_case(operator, 1)
    scales = (np.arange(64 * 3, dtype=np.uint16).reshape(64, 3) * 5 + 1).view(np.float16)
    case = with_scales(case, scales)

    ((found,),) = run_on_dawn([case], SPEC, swiftshader, tmp_path)

    np.testing.assert_allclose(found, case.expected[0], rtol=1e-4, atol=2.0**-26)


def test_a_library_whose_kernels_compute_in_float16_is_not_taken_for_one(tmp_path: Path) -> None:
    path, native = tmp_path / "model.wasm", target_spec("webgpu")
    built = cases_executable([looked_up(FINITE.reshape(-1, 64))], native)
    with pytest.raises(TargetError, match="computes in float16"):
        link(built, path, SPEC)
    assert not path.exists()
