"""Matmuls of one to nine rows: the definitions against NumPy, the kernels against both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    WORD,
    QuantizeRows,
    byte_of,
)
from gemma4_compile.operators.activations import FLOAT32, PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.tuning import FewRowTuning
from gemma4_compile.types import Array
from tests.fixed_scheme import FixedLayout
from tests.marks import of_test_all, shares, under_limits
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.numerics.linear.test_linear import close, gelu, stored
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST = 9
PAIRS = Epilogue.GELU_PAIRS.value
GATE = Epilogue.GELU_GATE.value
CAPPED = Epilogue.SOFTCAP.value
FewRow = Linear


def exact(layout: WeightLayout, in_dtype: str, **fields: Any) -> Linear:
    return Linear(Few(MOST), layout, in_dtype, **fields)


def int8(
    bits: int, cols: int, rows: tuple[int, ...], dtype: str = "float16", **fields: Any
) -> Linear:
    layout = WeightLayout(bits, dtype, GROUP, cols, rows)
    return int8_linear(Few(MOST), layout, PACKED, **fields)


def quantized(bits: int, dtype: str, cols: int, *rows: int) -> WeightLayout:
    return WeightLayout(bits, dtype, GROUP, cols, rows)


# No two neighbours alike in what they try; the rows of x are 1 to 9 by their place in this list.
OPERATORS: list[FewRow] = [
    # Units that end within a lane's iterations, rows that end within a tile, several splits.
    exact(quantized(4, "float16", 416, 64, 64, 40), "float16"),
    int8(4, 416, (64, 64, 40)),
    exact(quantized(8, "float16", 160, 200), "float32", epilogue=PAIRS),
    int8(8, 416, (72,), "float32"),
    exact(quantized(4, "float32", 96, 40), "float32", epilogue=GATE, ple_width=5 * 40),
    int8(4, 96, (70,), epilogue=PAIRS),
    exact(WeightLayout(0, "float16", 0, 44, (70,)), "float16", epilogue=CAPPED, cap=30.0),
    int8(8, 160, (40,), epilogue=GATE, ple_width=5 * 40),
    # Channels that no vector divides, nine rows.
    exact(WeightLayout(0, "float32", 0, 37, (101,)), "float32", suppressed=(3, 100)),
    int8(4, 32, (6,)),
    exact(FixedLayout(0, "float32", 0, 96, (64, 40)), "float32"),
    int8(4, 1536, (1000,), epilogue=CAPPED, cap=30.0, suppressed=(3, 77)),
    # Rows so long that lanes go over them several times.
    exact(quantized(4, "float16", 8192, 6), "float16"),
    int8(4, 21504, (6,)),
    # Products that are rounded, of one group and of several.
    int8(4, 160, (64, 128), epilogue=PAIRS, packed_out=True, interleaved_out=True),
    int8(8, 416, (192,), epilogue=PAIRS, packed_out=True),
    # Rows that each block rounds for itself; of the first the product, too.
    replace(int8(4, 160, (64, 64), epilogue=PAIRS, packed_out=True), in_dtype="float32"),
    replace(int8(8, 160, (72,), epilogue=PAIRS), in_dtype="float32"),
    replace(int8(4, 512, (64, 40)), in_dtype="float16"),
]


def exact_cases() -> list[KernelCase]:
    return numbered_cases([one for one in enumerate(OPERATORS) if not one[1].is_int8])


def cases_of(operators: Sequence[FewRow]) -> list[KernelCase]:
    return numbered_cases(list(enumerate(operators)))


def numbered_cases(operators: Sequence[tuple[int, FewRow]]) -> list[KernelCase]:
    return [make_case(one, seed, rows=1 + seed % MOST) for seed, one in operators]


@pytest.mark.parametrize(
    ("bits", "dtype"), [(4, "float16"), (6, "float16"), (8, "float32"), (0, "float16")]
)
def test_rows_of_floats(bits: int, dtype: str) -> None:
    tensors, matrix = stored(bits, dtype, (64, 40))
    layout = WeightLayout(bits, dtype, GROUP if bits else 0, matrix.shape[1], (64, 40))
    x = np.random.default_rng(1).normal(size=(5, layout.cols)).astype(np.float16)
    y, gated = np.zeros((5, 104), np.float32), np.zeros((5, 52), np.float32)

    run(exact(layout, "float16"), x, *tensors, y)
    run(exact(layout, "float16", epilogue=PAIRS), x, *tensors, gated)

    sums = x.astype(np.float64) @ matrix.T
    close(y, sums)
    close(gated, gelu(sums[:, 0::2]) * sums[:, 1::2])


def packed_rows(bits: int, rows: int, cols: int) -> tuple[Array, Array, Array]:
    """Words and scales of random rows for weights of so many bits, and what they mean."""
    rng = np.random.default_rng(2)
    integers = rng.integers(-127, 128, (rows, cols), dtype=np.int8)
    scales = rng.uniform(0.01, 0.02, (rows, cols // GROUP)).astype(np.float32)
    order = [4 * word + byte_of(byte, bits < 8) for word in range(cols // 4) for byte in range(4)]
    words = np.ascontiguousarray(integers[:, order]).view(np.uint32)
    return words, scales, integers * np.repeat(scales, GROUP, axis=1).astype(np.float64)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_rows_of_packed_integers(bits: int) -> None:
    tensors, matrix = stored(bits, "float16", (64, 40))
    cols = matrix.shape[1]
    words, scales, x = packed_rows(bits, 3, cols)
    y = np.zeros((3, 104), np.float32)

    run(int8(bits, cols, (64, 40)), words, scales, *tensors, y)

    close(y, x @ matrix.T)


def test_a_packed_product_is_the_product_and_its_rounding() -> None:
    operator = int8(4, 160, (64,), epilogue=PAIRS, packed_out=True, interleaved_out=True)
    case = make_case(operator, 1, rows=3)
    y = np.zeros((3, 32), np.float32)
    packed = [np.zeros_like(result) for result in case.expected]

    run(replace(operator, output=FLOAT32), *case.arrays[:-2], y)
    run(QuantizeRows(CHUNK, 32, "float32", PackedOutput(True)), y, *packed)

    for found, expected in zip(case.expected, packed, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_that_it_rounds_itself(dtype: str) -> None:
    tensors, matrix = stored(8, "float16", (64, 40))
    operator = int8(8, matrix.shape[1], (64, 40))
    x = np.random.default_rng(3).normal(size=(3, operator.cols)).astype(dtype)
    words = np.zeros((3, operator.cols // WORD), np.uint32)
    scales = np.zeros((3, operator.cols // GROUP), np.float32)
    itself, packed = np.zeros((3, 104), np.float32), np.zeros((3, 104), np.float32)

    run(replace(operator, in_dtype=dtype), x, *tensors, itself)
    run(QuantizeRows(CHUNK, operator.cols, dtype, PackedOutput(False)), x, words, scales)
    run(operator, words, scales, *tensors, packed)

    np.testing.assert_array_equal(itself, packed)


# A gate of integers, and the order of bytes that products of 4 bits have.
LISTS = shares(OPERATORS, 5, left=2, also=(7, 14))


def test_integers_have_every_epilogue_and_order_of_bytes_in_test_all() -> None:
    def forms(operators: Sequence[FewRow]) -> set[tuple[str, object]]:
        return {(one.epilogue, one.output) for one in operators if one.is_int8}

    assert forms(of_test_all(LISTS)) == forms(OPERATORS)


@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(LISTS))
def test_kernels_of_odd_shapes(
    share: list[tuple[int, FewRow]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = numbered_cases(share)

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
@pytest.mark.parametrize(
    "tuning",
    [
        pytest.param(
            FewRowTuning(threads=256, items_per_lane=1), id="many lanes", marks=pytest.mark.slow
        ),
        pytest.param(FewRowTuning(threads=64, min_blocks=1), id="many rows"),
        pytest.param(FewRowTuning(rows=2), id="two rows a block", marks=pytest.mark.slow),
    ],
)
def test_kernels_of_other_divisions(
    tuning: FewRowTuning, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(one, seed, rows=MOST - seed) for seed, one in enumerate(OPERATORS[:4])]
    spec = replace(target_spec("webgpu", "subgroups"), simd_width=SUBGROUP)
    spec = replace(spec, tuning=replace(spec.tuning, few_rows=tuning))

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
