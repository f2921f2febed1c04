"""A vision tower's WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.picture import PictureBlocks, PicturePositions
from gemma4_compile.operators.vision import (
    AddPatchPositions,
    PatchRotary,
    PixelPatches,
    PoolPatches,
)
from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope
from gemma4_compile.operators.vision_unified import PixelNorm, PositionNorms
from gemma4_compile.targets import target_spec
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

F16, F32 = "float16", "float32"
GATE, PAIRS, NONE = Epilogue.GELU_GATE.value, Epilogue.GELU_PAIRS.value, Epilogue.NONE.value


def dense(rows: int, cols: int, dtype: str = F16) -> WeightLayout:
    return WeightLayout(0, dtype, 0, cols, (rows,))


def eight_bits(rows: int, cols: int, dtype: str = F16) -> WeightLayout:
    return WeightLayout(8, dtype, 32, cols, (rows - 64, 64))


def bounded(layout: WeightLayout, dtype: str, epilogue: str = NONE, **fields: object) -> Operator:
    values = {"clipped": True, "out_dtype": F32, **fields}
    return BoundedLinear(None, layout, dtype, epilogue, **values)  # type: ignore[arg-type]


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
        PatchQkNormRope(12, 64, 1e-6, F16),
        PatchQkNormRope(16, 72, 1e-6, F32),
        PatchQkNormRope(5, 8, 1e-6, F16),
        PatchQkNormRope(40, 24, 1e-6, F32),
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
    "attention": (
        PatchAttention(3, 64, 3, F16, F16),
        PatchAttention(2, 72, 3, F16, F16),
        PatchAttention(2, 72, 3, F32, F32),
        PatchAttention(1, 8, 2, F32, F16),
    ),
    "matmuls": (
        bounded(eight_bits(768, 256), F16),
        bounded(dense(200, 208), F16, out_dtype=F16),
        bounded(dense(130, 96, F32), F32, GATE),
        bounded(eight_bits(320, 288), F16, GATE, out_dtype=F16),
        bounded(eight_bits(384, 256, F32), F32, PAIRS, clipped=False),
        bounded(dense(416, 144), F16, PAIRS, clipped=False, out_dtype=F16),
        bounded(eight_bits(2112, 256), F16, clipped=False),
    ),
}


@pytest.mark.dawn
@pytest.mark.parametrize("limits", ["default", "compat"])
@pytest.mark.parametrize("family", OPERATORS)
def test_every_kernel_computes_its_definition(
    family: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS[family])]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
