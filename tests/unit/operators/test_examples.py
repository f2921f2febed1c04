"""Weights of the kernels' tests: every code that may be stored, scales of both signs."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.known_inputs import KnownInput
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.packings import product_packing
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.matmuls import int8_linear

SIZES = Sizes(rows=5, before=7, capacity=32, chunk=8)
COLS, ROWS = 128, 64
CODES = {4: range(16), 8: range(255)}


def layout(bits: int) -> WeightLayout:
    return WeightLayout(bits, "float16", 32, COLS, (ROWS,))


LINEAR = [
    *(Linear(ONE, layout(bits), "float16") for bits in CODES),
    *(int8_linear(CHUNK, layout(bits), PACKED) for bits in CODES),
]
EXPERTS = [
    ExpertLinear(layout(bits), ROWS // 4, 4, 2, "float16", epilogue="none") for bits in CODES
]


@pytest.mark.parametrize("operator", [*LINEAR, *EXPERTS], ids=lambda one: one.name)
def test_examples_have_every_code_and_both_signs(operator: Linear | ExpertLinear) -> None:
    names = [param.name for param in operator.prim_func().params]
    args = operator.example_inputs(np.random.default_rng(1), SIZES)
    given = dict(zip(names, args, strict=True))
    check(np.asarray(given["q_weight0"]), np.asarray(given["q_scale0"]), operator.layout.bits)


@pytest.mark.parametrize("operator", LINEAR, ids=lambda one: one.name)
def test_so_have_known_inputs(operator: Linear) -> None:
    (_, words, _), (_, scales, dtype) = operator.layout.shapes()
    check(
        KnownInput("uint32", words, operator.known_spreads("q_weight0", "uint32"), seed=1).array(),
        KnownInput(dtype, scales, operator.known_spreads("q_scale0", dtype), seed=2).array(),
        operator.layout.bits,
    )


def check(words: np.ndarray, scales: np.ndarray, bits: int) -> None:
    found = set(np.unique(product_packing(bits).unpack(words)).tolist())
    assert found <= set(CODES[bits])
    assert {0, max(CODES[bits])} <= found
    assert bits == 8 or len(found) == 16
    assert 0.3 < (scales < 0).mean() < 0.7
    assert (scales != 0).all()
