"""Matmuls of a few rows that make their rows or pack their product, against several launches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import GROUP, QuantizeRows
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.few_row_linear import (
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
    Int8NormedFewRowLinear,
)
from gemma4_compile.operators.few_row_quantization import (
    QuantizedFewRowCombine,
    QuantizedFewRowNorm,
)
from gemma4_compile.operators.int8_linear import PACKED
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.tuning import FewRowTuning
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST = 9
PAIRS = Epilogue.GELU_PAIRS.value
GATE = Epilogue.GELU_GATE.value


def normed(bits: int, cols: int, *rows: int, **fields: Any) -> Int8NormedFewRowLinear:
    layout = WeightLayout(bits, "float16", GROUP, cols, rows)
    return Int8NormedFewRowLinear(None, layout, "float32", most_rows=MOST, eps=1e-6, **fields)


def packing(bits: int, cols: int, *rows: int, **fields: Any) -> Int8FewRowLinear:
    layout = WeightLayout(bits, "float16", GROUP, cols, rows)
    own = {"epilogue": PAIRS, "packed_out": True, **fields}
    return Int8FewRowLinear(None, layout, PACKED, most_rows=MOST, **own)


def combined(bits: int, heads: int, dim: int, splits: int, *rows: int) -> Int8CombinedFewRowLinear:
    layout = WeightLayout(bits, "float16", GROUP, heads * dim, rows)
    return Int8CombinedFewRowLinear(
        None, layout, "float16", most_rows=MOST, heads=heads, head_dim=dim, splits=splits
    )


# The rows of x are 1, 3, 5, 7, 9, 2, ... by their place in this list.
OPERATORS: list[Int8FewRowLinear] = [
    normed(4, 288, 64, 40),
    normed(4, 1536, 256, epilogue=PAIRS, packed_out=True, interleaved_out=True),
    normed(8, 416, 72, normed=False, epilogue=GATE, ple_width=5 * 72),
    packing(4, 160, 64, 128, interleaved_out=True),
    normed(8, 96, 200, epilogue=PAIRS, scaled=True),
    packing(8, 416, 192),
    replace(packing(8, 160, 64), in_dtype="float32"),
    normed(4, 1600, 6),
    combined(4, 3, 96, 7, 64, 40),
    combined(8, 2, 256, 9, 72),
]


def cases() -> list[KernelCase]:
    return [make_case(one, seed, rows=1 + 2 * seed % MOST) for seed, one in enumerate(OPERATORS)]


@pytest.mark.parametrize("is_normed", [False, True])
def test_a_normed_matmul_is_a_norm_and_a_matmul(is_normed: bool) -> None:
    operator = normed(4, 288, 64, 40, scaled=True, normed=is_normed)
    case = make_case(operator, 1, rows=5)
    count = 5 if is_normed else 4
    of_norm, weights = case.arrays[:count], case.arrays[count:-2]
    out, y = case.expected
    same, product = np.zeros_like(out), np.zeros_like(y)
    packed = np.zeros((5, 72), np.uint32), np.zeros((5, 9), np.float32)

    norm = QuantizedFewRowNorm(288, 1e-6, True, True, MOST, normed=is_normed)
    run(norm, *of_norm, same, *packed)
    run(Int8FewRowLinear(None, operator.layout, PACKED), *packed, *weights, product)

    np.testing.assert_array_equal(out, same)
    np.testing.assert_array_equal(y, product)


def test_a_combined_matmul_is_a_combine_and_a_matmul() -> None:
    operator = combined(4, 3, 96, 7, 64, 40)
    case = make_case(operator, 1, rows=5)
    splits, weights = case.arrays[:2], case.arrays[2:-1]
    packed = np.zeros((5, 72), np.uint32), np.zeros((5, 9), np.float32)
    product = np.zeros_like(case.expected[0])

    run(QuantizedFewRowCombine(3, 96, 7, "float16", True, MOST), *splits, *packed)
    run(Int8FewRowLinear(None, operator.layout, PACKED), *packed, *weights, product)

    np.testing.assert_array_equal(case.expected[0], product)


def test_a_packed_product_is_the_product_and_its_rounding() -> None:
    operator = packing(4, 160, 64, interleaved_out=True)
    case = make_case(operator, 1, rows=3)
    y = np.zeros((3, 32), np.float32)
    packed = [np.zeros_like(result) for result in case.expected]

    run(replace(operator, packed_out=False), *case.arrays[:-2], y)
    run(QuantizeRows(None, 32, "float32", True), y, *packed)

    for found, expected in zip(case.expected, packed, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", [*LIMITS, pytest.param("subgroups", marks=pytest.mark.slow)])
def test_kernels(limits: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    made, spec = cases(), target_spec("webgpu", limits)
    spec = replace(spec, simd_width=min(spec.simd_width, SUBGROUP))

    results = run_on_dawn(made, spec, lavapipe, tmp_path)

    assert not (wrong := differences(made, results)), "\n".join(wrong)


@pytest.mark.dawn
def test_blocks_of_several_tiles(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    tuning = FewRowTuning(rows=4, wide_threads=64, wide_blocks=1, norm_threads=128)
    spec = replace(target_spec("webgpu", "subgroups"), simd_width=SUBGROUP)
    spec = replace(spec, tuning=replace(spec.tuning, few_rows=tuning))

    results = run_on_dawn(cases(), spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases(), results)), "\n".join(wrong)
