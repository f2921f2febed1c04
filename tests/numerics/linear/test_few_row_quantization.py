"""Norm and combine of a few rows that round their result, against the two launches they replace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import (
    QuantizeRows,
)
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.quantize_rows import norm_threads
from gemma4_compile.types import Array
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST = 9
Packing = QuantizeRows | ResidualNorm | CombineSplits
TILED: list[Packing] = [
    QuantizeRows(CHUNK, 288, "float32", PackedOutput(True, tiled=True)),
    QuantizeRows(CHUNK, 1312, "float16", PackedOutput(False, tiled=True)),
    ResidualNorm(Few(MOST), 1536, 1e-6, True, "float32", output=PackedOutput(True, tiled=True)),
    ResidualNorm(Few(MOST), 288, 1e-6, False, None, output=PackedOutput(False, tiled=True)),
    CombineSplits(3, 96, 7, "float16", Few(MOST), PackedOutput(True, tiled=True)),
]
OPERATORS: list[Packing] = [
    ResidualNorm(Few(MOST), 288, 1e-6, False, "float32", output=PackedOutput(False)),
    ResidualNorm(Few(MOST), 1536, 1e-6, True, "float32", output=PackedOutput(True)),
    CombineSplits(3, 96, 7, "float16", Few(MOST), PackedOutput(True)),
    CombineSplits(2, 256, 20, "float32", Few(MOST), PackedOutput(False)),
    ResidualNorm(Few(MOST), 5376, 1e-6, True, "float32", output=PackedOutput(False)),
    ResidualNorm(Few(MOST), 1536, 1e-6, False, None, output=PackedOutput(True)),
    *TILED,
]


def cases() -> list[KernelCase]:
    return [make_case(one, seed, rows=1 + 2 * seed % MOST) for seed, one in enumerate(OPERATORS)]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_norm_is_a_norm_and_its_rounding(scaled: bool) -> None:
    operator = ResidualNorm(Few(MOST), 288, 1e-6, scaled, "float32", output=PackedOutput(True))
    case = make_case(operator, 1, rows=5)
    *args, _, _, _ = case.arrays
    out, words, scales = case.expected
    same, hidden = np.zeros_like(out), np.zeros_like(out)
    packed = np.zeros_like(words), np.zeros_like(scales)

    run(ResidualNorm(CHUNK, 288, 1e-6, scaled, "float32"), *args, same, hidden)
    run(QuantizeRows(CHUNK, 288, "float32", PackedOutput(True)), hidden, *packed)

    for found, expected in zip((out, words, scales), (same, *packed), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_residual_that_is_not_normed_is_rounded_itself() -> None:
    case = make_case(
        ResidualNorm(Few(MOST), 288, 1e-6, False, None, output=PackedOutput(True)), 1, rows=5
    )
    out, words, scales = case.expected
    same, packed = np.zeros_like(out), (np.zeros_like(words), np.zeros_like(scales))

    run(ResidualNorm(CHUNK, 288, 1e-6, False, None), *case.arrays[:3], same)
    run(QuantizeRows(CHUNK, 288, "float32", PackedOutput(True)), same, *packed)

    for found, expected in zip((out, words, scales), (same, *packed), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_combine_is_a_combine_and_its_rounding() -> None:
    operator = CombineSplits(3, 96, 7, "float32", Few(MOST), PackedOutput(True))
    case = make_case(operator, 1, rows=4)
    o_partial, split_lse, _, _ = case.arrays
    words, scales = case.expected
    x = np.zeros((4, 3 * 96), np.float32)
    packed = np.zeros_like(words), np.zeros_like(scales)

    run(CombineSplits(3, 96, 7, "float32", Few(MOST)), o_partial, split_lse, x)
    run(QuantizeRows(CHUNK, 288, "float32", PackedOutput(True)), x, *packed)

    np.testing.assert_allclose(scales, packed[1], rtol=1e-6)
    moved = np.abs(words.view(np.int8).astype(int) - packed[0].view(np.int8))
    assert moved.max() <= 1
    assert moved.mean() <= operator.moved_share()


def in_tiles(words: Array) -> Array:
    """Words (rows, width / 4) in tiles of eight rows, the last one filled with zeros."""
    rows, count = words.shape
    filled = np.pad(words, ((0, -rows % 8), (0, 0)))
    return filled.reshape(-1, 8, count // 8, 8).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("rows", [1, 5, 8, 9])
@pytest.mark.parametrize("operator", TILED)
def test_tiles_are_the_rows_in_another_order(operator: Packing, rows: int) -> None:
    assert isinstance(operator, Packing)
    assert isinstance(operator.output, PackedOutput)
    in_rows = replace(operator, output=replace(operator.output, tiled=False))
    case, plain = (make_case(one, 3, rows=rows) for one in (operator, in_rows))
    *others, words, scales = case.expected
    *same, rows_of_words, same_scales = plain.expected
    np.testing.assert_array_equal(words, in_tiles(rows_of_words))
    for found, expected in zip((*others, scales), (*same, same_scales), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("target", "width", "threads"),
    [
        ("cuda", 64, 32),
        ("cuda", 1536, 384),  # one vec4 each
        ("cuda", 2816, 352),  # two
        ("cuda", 5376, 448),  # three
        ("webgpu", 1536, 256),
    ],
)
def test_all_threads_of_a_norm_have_as_many_channels(target: str, width: int, threads: int) -> None:
    assert norm_threads(width, target_spec(target)) == threads


@pytest.mark.dawn
@pytest.mark.parametrize("limits", [*LIMITS, pytest.param("subgroups", marks=pytest.mark.slow)])
def test_kernels(limits: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    made, spec = cases(), target_spec("webgpu", limits)
    spec = replace(spec, simd_width=min(spec.simd_width, SUBGROUP))

    results = run_on_dawn(made, spec, lavapipe, tmp_path)

    assert not (wrong := differences(made, results)), "\n".join(wrong)
