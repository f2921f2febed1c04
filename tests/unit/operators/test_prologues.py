"""Prologues: they travel with their matmul, and add their arguments and results to its."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.base import operator_of
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.prologues import PLAIN, Combine, Norm, Prologue, Routed
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.matmuls import int8_linear

LAYOUT = WeightLayout(4, "float16", 32, 64, (128,))
PROLOGUES = [
    (PLAIN, ["x"], []),
    (Norm(1e-6), ["branch", "residual", "w_branch", "w_next"], ["out"]),
    (Norm(1e-6, scaled=True, normed=False), ["branch", "residual", "w_branch", "scalar"], ["out"]),
    (
        Norm(1e-6, scaled=True, count=2),
        ["dense", "experts", "residual", "w_branches", "scalar", "w_next"],
        ["out"],
    ),
    (Routed(1e-6, 6, 0.1), ["branch", "residual", "vectors", "projection"], ["out", "routed"]),
    (Combine(2, 32, 4), ["o_partial", "split_lse"], []),
]


@pytest.mark.parametrize("kind", [Linear, int8_linear])
@pytest.mark.parametrize(("prologue", "args", "results"), PROLOGUES)
def test_arguments_and_results_are_those_of_both(
    prologue: Prologue, args: list[str], results: list[str], kind: Callable[..., Linear]
) -> None:
    operator = kind(ONE, LAYOUT, "float16", prologue=prologue)
    func = operator.prim_func()
    names = [param.name for param in func.params]
    assert names[: len(args)] == args
    assert names[len(args) + 2 : -1] == results  # between the weights' two and the product
    assert operator_of(func) == operator


def test_a_packed_product_comes_behind_the_routers_scores() -> None:
    pairs = Epilogue.GELU_PAIRS.value
    operator = int8_linear(
        ONE, LAYOUT, "float32", pairs, packed_out=True, prologue=Routed(1e-6, 6, 0.1)
    )
    names = [param.name for param in operator.prim_func().params]
    specs = operator.result_specs
    assert names[-3:] == ["routed", "words", "scales"]
    assert [dtype for _, dtype in specs] == ["float32", "uint32", "float32"]
    assert specs[0] == Routed(1e-6, 6, 0.1).norm(64).result_spec


def test_one_position_alone_has_its_vector_made() -> None:
    with pytest.raises(AssertionError, match="only one position"):
        Linear(CHUNK, LAYOUT, "float16", prologue=Norm(1e-6)).definition()


def test_packed_vectors_are_as_they_come() -> None:
    assert int8_linear(ONE, LAYOUT, PACKED).is_plain
    assert not Linear(ONE, LAYOUT, "float16", prologue=Norm(1e-6)).is_plain
