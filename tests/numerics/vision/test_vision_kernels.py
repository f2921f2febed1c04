"""A vision tower's WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.picture import PictureBlocks, PicturePositions
from gemma4_compile.operators.vision import (
    AddPatchPositions,
    PatchRotary,
    PixelPatches,
    PoolPatches,
)
from gemma4_compile.operators.vision_unified import PixelNorm, PositionNorms
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

F16, F32 = "float16", "float32"


def dense(rows: int, cols: int, dtype: str = F16) -> WeightLayout:
    return WeightLayout(0, dtype, 0, cols, (rows,))


def eight_bits(rows: int, cols: int, dtype: str = F16) -> WeightLayout:
    return WeightLayout(8, dtype, 32, cols, (rows - 64, 64))


OPERATORS: dict[str, tuple[Operator, ...]] = {
    "pixels": (PixelPatches(16, 3, F16), PixelPatches(4, 2, F32), PixelNorm(1728, F16)),
    "positions": (
        AddPatchPositions(3, eight_bits(256, 96)),
        AddPatchPositions(2, dense(64, 90, F32)),
        PositionNorms(eight_bits(256, 1152), 1e-6, F16),
        PositionNorms(dense(42, 100, F32), 1e-6, F32),
        PixelNorm(1190, F32),
    ),
    "rotation": (
        PatchRotary(64, 100.0, 3),
        PatchRotary(72, 100.0, 3),
    ),
    "picture": (
        PictureBlocks(20, 14, 12, 169),
        PictureBlocks(3, 2, 48, 96),
        PicturePositions(20, 14, 12, 280),  # a container of 93 x 2 blocks
        PicturePositions(20, 14, 12, 92),  # of which the table holds fewer: stretched
    ),
    "pooling": (
        PoolPatches(768, 3, 1e-6, False, F16),
        PoolPatches(1152, 3, 1e-6, True, F32),
        PoolPatches(90, 2, 1e-6, True, F16),
    ),
}


@pytest.mark.dawn
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("family", OPERATORS)
def test_every_kernel_computes_its_definition(
    family: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS[family])]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
