"""Matmuls in subgroup matrices, emulated, against the definition, on Dawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.subgroup_matrix_gemm import fits_subgroup_matrices
from gemma4_compile.targets.tuning import SubgroupMatrixTuning, TensorCoreTuning
from tests.marks import shares
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.emulated_matrices import emulated_spec
from tests.numerics.kernel_cases import differences, make_case
from tests.numerics.linear.test_bounded_kernels import bounded
from tests.numerics.tensor_cores import MATMULS
from tests.numerics.vision.test_vision_kernels import F16, F32, dense, eight_bits
from tests.web.dawn import VulkanDriver

# Half a step of channels left over comes second: with a few others it is in the quick share.
OPERATORS = (*MATMULS[1:], MATMULS[0], bounded(dense(130, 96), F16))  # results in no vectors
TILES = {
    "64x64": TensorCoreTuning(64, 64, 32, 32, 32),
    "wide": SubgroupMatrixTuning().wide,
    "narrow": SubgroupMatrixTuning().narrow,
    "medium": SubgroupMatrixTuning().medium,
}


def one_tile(tile: TensorCoreTuning) -> SubgroupMatrixTuning:
    return SubgroupMatrixTuning(wide=tile, narrow_to=0, medium_to=0)


NUMBERED = list(enumerate(OPERATORS))
SOME, OTHERS = shares(OPERATORS, 3)
# Of each kind of weights, of results and with pairs; all operators with one of them or two.
OF_TILES = {"wide": NUMBERED[::2], "narrow": NUMBERED[1::2], "medium": NUMBERED[2:5]}


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("64x64", *SOME.values, id="some"),
        pytest.param("64x64", *OTHERS.values, id="others", marks=pytest.mark.exhaustive),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.slow) for one in OF_TILES.items()),
    ],
)
def test_tiles_compute_the_definition(
    share: list[tuple[int, Operator]], name: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = emulated_spec(subgroup_matrices=one_tile(TILES[name]))
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_operands_of_other_forms_are_left_to_the_tiles() -> None:
    spec = target_spec("webgpu", "h200-matrices")
    assert fits_subgroup_matrices(bounded(dense(64, 64), F16), spec)
    assert not fits_subgroup_matrices(bounded(dense(64, 64), F16), target_spec("webgpu", "h200"))
    others = [dense(64, 64, F32), eight_bits(64, 64, F32), dense(64, 72)]
    others.append(replace(eight_bits(64, 64), bits=4))
    assert not any(fits_subgroup_matrices(bounded(layout, F16), spec) for layout in others)
    assert not fits_subgroup_matrices(bounded(dense(64, 64), F32), spec)
