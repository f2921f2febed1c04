"""Matmuls of the CPU target in tiles, next to their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.activations import PACKED, STEPPED_INT8, SteppedOutput
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.weight_layout import BFloat16Layout
from gemma4_compile.quantization.rows import RowScheme
from tests.matmuls import int8_linear
from tests.numerics.definitions import Array
from tests.numerics.host_kernels import check_host_kernel, run_host

PAIRS, GATE, CAPPED = (
    one.value for one in (Epilogue.GELU_PAIRS, Epilogue.GELU_GATE, Epilogue.SOFTCAP)
)
F16, F32 = "float16", "float32"
NIBBLES = WeightLayout(4, F16, 32, 96, (64,))
ODD_SPLITS = WeightLayout(4, F16, 32, 96, (24, 18, 30))
"""Row splits that end within a tile."""

OPERATORS = {
    "4 bits": Linear(CHUNK, NIBBLES, F16),
    "6 bits": Linear(CHUNK, WeightLayout(6, F16, 32, 96, (32,)), F16),
    "8 bits": Linear(CHUNK, WeightLayout(8, F32, 32, 96, (32,)), F32),
    "minima": Linear(CHUNK, MinimaLayout(4, "uint32", 32, 288, (16,)), F16),
    "bfloat16": Linear(CHUNK, BFloat16Layout(16, "uint32", 0, 96, (32,)), F32),
    "float16, an odd width": Linear(CHUNK, WeightLayout(0, F16, 0, 35, (16,)), F16),
    "float32, several tiles deep": Linear(CHUNK, WeightLayout(0, F32, 0, 1040, (16,)), F32),
    "row splits": Linear(CHUNK, ODD_SPLITS, F16),
    "gate and up": Linear(CHUNK, ODD_SPLITS, F16, PAIRS),
    "gated": Linear(CHUNK, NIBBLES, F32, GATE, ple_width=5 * 64),
    "logits": Linear(CHUNK, ODD_SPLITS, F32, CAPPED, cap=30.0, suppressed=(3,)),
    "a decoded token": Linear(ONE, ODD_SPLITS, F16),
    "a decoded token, normed": Linear(ONE, NIBBLES, F16, PAIRS, prologue=Norm(eps=1e-6)),
    "int8": int8_linear(CHUNK, NIBBLES, PACKED),
    "steps": Linear(
        CHUNK,
        RowScheme(4).layout(96, (32,)),
        PACKED,
        activations=STEPPED_INT8,
        output=SteppedOutput((32,)),
    ),
    "bounds": BoundedLinear(CHUNK, NIBBLES, F16, clipped=True),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_kernel_is_its_definition(name: str) -> None:
    check_host_kernel(OPERATORS[name], Sizes(7, 0, 0, 7))  # no multiple of a block of rows


def test_a_row_does_not_depend_on_the_others() -> None:
    operator = OPERATORS["float32, several tiles deep"]
    rng = np.random.default_rng(1)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((6, 1040), (16, 1040)))

    def product(rows: Array) -> Array:
        y = np.full((len(rows), 16), np.nan, np.float32)
        run_host(operator, rows, weight, y)
        return y

    together = product(x)
    np.testing.assert_array_equal(together, np.concatenate([product(row[None]) for row in x]))
    np.testing.assert_allclose(together, x.astype(np.float64) @ weight.T, rtol=1e-4, atol=1e-3)
