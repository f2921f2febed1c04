"""Kernels that read 6-bit integers, in every way to divide them, next to their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import CHUNK, ONE, Few
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.few_row_tensor_cores import fits_tensor_cores
from tests.marks import shares, under_limits
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

PAIRS, CAPPED, DOWN = (one.value for one in (Epilogue.GELU_PAIRS, Epilogue.SOFTCAP, Epilogue.NONE))
FEW = Few(9)


def sixes(cols: int, *rows: int, dtype: str = "float16") -> WeightLayout:
    return WeightLayout(6, dtype, 32, cols, rows)


def operators() -> list[Operator]:
    """An odd number of groups, whose rows begin within 16 bytes; lanes and tiles that end early."""
    return [
        Embedding(CHUNK, sixes(96, 64, 32), 0, 2.0, False),
        Linear(ONE, sixes(416, 64, 64, 40), "float16"),
        Linear(FEW, sixes(96, 64, 40), "float32", PAIRS),
        Linear(CHUNK, sixes(96, 64, 64, 40), "float16"),
        Linear(CHUNK, sixes(160, 70, dtype="float32"), "float32", CAPPED, cap=30.0),
        int8_linear(ONE, sixes(416, 64, 64, 40), PACKED),
        int8_linear(ONE, sixes(288, 64, 9), "float32", prologue=Norm(eps=1e-6)),
        int8_linear(
            ONE, sixes(96, 192), "float16", epilogue=PAIRS, packed_out=True, interleaved_out=True
        ),
        int8_linear(FEW, sixes(416, 64, 64, 40), PACKED),
        int8_linear(FEW, sixes(160, 64, 64), "float32", epilogue=PAIRS),
        int8_linear(CHUNK, sixes(96, 64, 64, 40), PACKED),
        int8_linear(CHUNK, sixes(160, 200, dtype="float32"), PACKED, epilogue=PAIRS),
        ExpertLinear(sixes(96, 40 * 6), 40, 6, 3, "float32"),
        ExpertLinear(sixes(96, 40 * 6), 40, 6, 3, "float16", rows=CHUNK),
        ExpertLinear(
            sixes(96, 64 * 6), 64, 6, 3, "float32", activations=INT8, output=PackedOutput(True)
        ),
        ExpertLinear(sixes(32, 20 * 6), 20, 6, 3, PACKED, activations=INT8, epilogue=DOWN),
        ExpertLinear(sixes(96, 80 * 6), 80, 6, 3, PACKED, activations=INT8, rows=CHUNK),
        ExpertLinear(sixes(96, 40 * 6), 40, 6, 3, PACKED, activations=INT8, rows=FEW),
    ]


def floats() -> list[Operator]:
    """Those of them that multiply floats, as Metal does."""
    return [one for one in operators() if not getattr(one, "is_int8", False)]


@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(operators(), 3)))
def test_they_compute_what_the_definitions_do(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_tensor_cores_take_groups_of_whole_pieces(bits: int) -> None:
    layout = WeightLayout(bits, "float16", 32, 1536, (4096,))
    operator = int8_linear(FEW, layout, PACKED)
    assert fits_tensor_cores(operator, target_spec("cuda")) == (bits != 6)
