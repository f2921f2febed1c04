"""Kernels that read groups with minima, in every way to divide them, next to their definitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import CHUNK, ONE, Few
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.linear.few_row_tensor_cores import fits_tensor_cores
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape
from gemma4_compile.targets.kernels.tiles.tensor_cores import MULTIPLY_ADD_BYTES
from tests.marks import shares, under_limits
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import differences, make_case
from tests.numerics.linear.test_linear import close
from tests.web.dawn import VulkanDriver

PAIRS, CAPPED, DOWN = (one.value for one in (Epilogue.GELU_PAIRS, Epilogue.SOFTCAP, Epilogue.NONE))
FEW = Few(9)


def minima(cols: int, *rows: int) -> MinimaLayout:
    return MinimaLayout(4, "uint32", 32, cols, rows)


def operators() -> list[Operator]:
    """Rows of less than a block, of several and a shorter one; lanes and tiles that end early."""
    return [
        Embedding(CHUNK, minima(288, 64, 32), 0, 2.0, False),
        Linear(ONE, minima(416, 64, 64, 40), "float16"),
        Linear(FEW, minima(96, 64, 40), "float32", PAIRS),
        Linear(CHUNK, minima(352, 64, 64, 40), "float16"),
        Linear(CHUNK, minima(160, 70), "float32", CAPPED, cap=30.0),
        int8_linear(ONE, minima(704, 64, 64, 40), PACKED),
        int8_linear(ONE, minima(288, 64, 9), "float32", prologue=Norm(eps=1e-6)),
        int8_linear(
            ONE, minima(96, 192), "float16", epilogue=PAIRS, packed_out=True, interleaved_out=True
        ),
        int8_linear(FEW, minima(416, 64, 64, 40), PACKED),
        int8_linear(FEW, minima(160, 64, 64), "float32", epilogue=PAIRS),
        int8_linear(CHUNK, minima(288, 64, 64, 40), PACKED),
        int8_linear(CHUNK, minima(160, 200), PACKED, epilogue=PAIRS),
        ExpertLinear(minima(96, 40 * 6), 40, 6, 3, "float32"),
        ExpertLinear(minima(288, 40 * 6), 40, 6, 3, "float16", rows=CHUNK),
        ExpertLinear(
            minima(96, 64 * 6), 64, 6, 3, "float32", activations=INT8, output=PackedOutput(True)
        ),
        ExpertLinear(minima(288, 20 * 6), 20, 6, 3, PACKED, activations=INT8, epilogue=DOWN),
        ExpertLinear(minima(96, 80 * 6), 80, 6, 3, PACKED, activations=INT8, rows=CHUNK),
        ExpertLinear(minima(96, 40 * 6), 40, 6, 3, PACKED, activations=INT8, rows=FEW),
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


@pytest.mark.dawn
def test_rows_are_read_ahead_as_cuda_has_them(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    """Terms as they are stored and rows in the text of a loop, in parts and with a tail."""
    spec = target_spec("webgpu", "default")
    cuda = target_spec("cuda").tuning.int8_gemv
    own = replace(spec.tuning.int8_gemv, min_blocks=1)
    as_cuda = replace(own, resident_threads=512, unrolled_rows=cuda.unrolled_rows)
    usual, other = (
        replace(spec, tuning=replace(spec.tuning, int8_gemv=one)) for one in (own, as_cuda)
    )
    found = [one for one in operators() if isinstance(one, Linear) and one.is_int8]
    ones = [one for one in found if one.rows == ONE]
    ones.append(int8_linear(ONE, WeightLayout(4, "float16", 32, 416, (64, 40)), PACKED))
    assert max(int8_shape(one, other).rows for one in ones) == cuda.unrolled_rows
    for one in ones:
        assert str(make_kernel(one, usual).script()) != str(make_kernel(one, other).script())
    cases = [make_case(operator, seed) for seed, operator in enumerate(ones)]

    results = run_on_dawn(cases, other, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_a_weight_is_its_code_times_the_scale_less_the_minimum() -> None:
    """By the words of the documentation, channel by channel."""
    layout, rng = minima(288, 40), np.random.default_rng(0)
    words = rng.integers(0, 2**32, (40, 36), dtype=np.uint32)
    found = layout.example_input("q_scale0", (40, 8), rng)
    assert found is not None
    scales = np.asarray(found, np.uint32)
    matrix = np.zeros((40, 288))
    for row in range(40):
        for col in range(288):
            block, group = col // 256, col % 256 // 32
            sizes, low_s, low_m, high = (int(scales[row, 4 * block + at]) for at in range(4))
            d, e = np.array([sizes & 0xFFFF0000, sizes << 16 & 0xFFFF0000], np.uint32).view("<f4")
            s = (low_s >> 4 * group & 15) + 16 * (high >> 2 * group & 3)
            m = (low_m >> 4 * group & 15) + 16 * (high >> (2 * group + 16) & 3)
            code = int(words[row, col // 8]) >> 4 * (col % 8) & 15
            matrix[row, col] = code * s * float(d) - m * float(e)
    x, y = rng.normal(size=(3, 288)).astype(np.float32), np.zeros((3, 40), np.float32)

    run(Linear(CHUNK, layout, "float32"), x, words, scales, y)

    close(y, x.astype(np.float64) @ matrix.T)


@pytest.mark.parametrize(
    ("dtype", "rows", "fits"),
    [(PACKED, 4096, True), ("float32", 4096, False), (PACKED, 256, False)],
)
def test_tensor_cores_take_packed_rows_of_larger_ones(dtype: str, rows: int, fits: bool) -> None:
    operator, spec = int8_linear(FEW, minima(1536, rows), dtype), target_spec("cuda")
    assert fits_tensor_cores(operator, spec) == fits
    kernel = str(make_kernel(operator, spec).script())
    assert (MULTIPLY_ADD_BYTES in kernel) == fits
