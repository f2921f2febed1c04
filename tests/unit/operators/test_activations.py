"""Activations and outputs: they travel with their matmul, and say what it takes and gives."""

from __future__ import annotations

import pytest

from gemma4_compile.operators.activations import (
    FLOAT32,
    FLOATS,
    HALVED,
    HALVED_INT8,
    INT8,
    PACKED,
    SCALED_HALVES,
    Activations,
    Int8,
    Output,
    PackedOutput,
)
from gemma4_compile.operators.base import operator_of
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK, Few

FORMS = (FLOATS, INT8, Int8(tiled=True), HALVED_INT8, SCALED_HALVES)
LAYOUT = WeightLayout(4, "float16", 32, 64, (64,))


@pytest.mark.parametrize("activations", FORMS)
@pytest.mark.parametrize("output", [FLOAT32, PackedOutput(interleaved=True)])
def test_they_travel_with_their_matmul(activations: Activations, output: Output) -> None:
    dtype = "float16" if activations == FLOATS else PACKED
    pairs = Epilogue.GELU_PAIRS.value
    operator = Linear(Few(9), LAYOUT, dtype, pairs, activations=activations, output=output)
    func = operator.prim_func()
    names = [param.name for param in func.params]
    left = {FLOATS: ["x"], SCALED_HALVES: ["halves", "powers"]}.get(
        activations, ["words", "scales"]
    )
    assert names[: len(left)] == left
    assert len(names) == len(left) + 2 + (1 if output == FLOAT32 else 2)
    assert operator_of(func) == operator


def test_words_of_packed_rows_are_in_tiles_where_said() -> None:
    operator = Linear(Few(9), LAYOUT, PACKED, activations=Int8(tiled=True))
    assert len(operator.prim_func().params[0].shape) == 4


def test_a_vector_that_the_kernel_rounds_has_its_error() -> None:
    packed = Linear(Few(9), LAYOUT, PACKED, activations=INT8)
    own = Linear(Few(9), LAYOUT, "float32", activations=INT8)
    plain = Linear(Few(9), LAYOUT, "float32")
    assert packed.tolerance("sums") == plain.tolerance("sums") < own.tolerance("sums")
    assert own.moved_share() > packed.moved_share()
    assert (packed.packs, plain.packs) == (True, False)


def test_operands_in_float16_have_their_rounding() -> None:
    packed = Linear(CHUNK, LAYOUT, PACKED, activations=INT8)
    halved = Linear(CHUNK, LAYOUT, PACKED, activations=HALVED_INT8)
    assert halved.tolerance("y") == packed.tolerance("y") + 2 * 2.0**-11
    assert halved.is_int8
    scaled = Linear(CHUNK, LAYOUT, PACKED, activations=SCALED_HALVES)
    assert scaled.tolerance("y") == packed.tolerance("y") + 2.0**-11
    assert (halved.takes_halved_rows, scaled.takes_halved_rows) == (False, True)


def test_weights_in_float16_have_their_rounding() -> None:
    plain = Linear(CHUNK, LAYOUT, "float32")
    halved = Linear(CHUNK, LAYOUT, "float32", activations=HALVED)
    assert halved.tolerance("y") == plain.tolerance("y") + 2.0**-11
    assert (halved.is_int8, halved.by_halves, plain.by_halves) == (False, True, False)
    assert operator_of(halved.prim_func()) == halved
