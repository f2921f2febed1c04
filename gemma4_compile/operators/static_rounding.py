"""Values held to whole steps of int8 whose size a checkpoint fixes: before and after a matmul.

Google's checkpoints for phones were trained with it. A step of 0 rounds nothing. Ties go to the
even number: products of two such values lie on a tie often, where other values never do.

References
----------
transformers 5.24.0, `apply_srq` of `integrations/gemma_quant.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activations import SteppedOutput
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.pointwise import Columns
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

LOWEST, HIGHEST = -128, 127
STEPS = "steps"
"""The argument with the steps of a matrix: of inputs and of outputs in turn, a pair a source."""
EXAMPLE_STEP = 2.0**-4
"""A power of two, so that a quotient is exact on every device and ties are met."""

EXAMPLE_STEPS = (Spread(1, 1, EXAMPLE_STEP / 2),)
"""Half of the step above, or that step."""


def exact_scale(bits: int) -> float:
    """The smaller of two scales of integers, powers of two, with which sums are exact in float32.

    So that no order of a sum puts a value on another side of a tie.
    """
    return 2.0 ** -(bits + 4)


def nearest_even(value: Expr) -> Expr:
    """The nearest whole number of a float32 of moderate size; of two equally near ones the even."""
    above = tirx.floor(value + f32(0.5))
    excess = above - value  # exact, and above 0.5 where the sum was rounded up
    is_odd = tirx.floor(above * f32(0.5)) * f32(2.0) != above
    goes_down = tirx.any(excess > f32(0.5), tirx.all(excess == f32(0.5), is_odd))
    return tirx.Select(goes_down, above - f32(1.0), above)


def round_to_step(value: Expr, step: Expr) -> Expr:
    """`value` as the nearest of the 256 multiples of a step that int8 has; itself if that is 0."""
    is_fixed = step != f32(0.0)
    divisor = tirx.Select(is_fixed, step, f32(1.0))
    held = tirx.max(tirx.min(value / divisor, f32(HIGHEST)), f32(LOWEST))
    return tirx.Select(is_fixed, nearest_even(held) * divisor, value)


@dataclass(frozen=True)
class RoundToStep(Columns):
    """The inputs of a matmul, rounded to the first of its steps.

    Arguments: x (rows, width) in_dtype; steps (count,) f32. Result: (rows, width) f32.
    """

    kind: ClassVar[str] = "round_to_step"
    in_dtype: str
    count: int

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [("x", ((rows, self.width), self.in_dtype)), (STEPS, ((self.count,), "float32"))]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        x, steps = args
        return round_to_step(as_f32(x[i, j]), steps[0])

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == STEPS:
            return np.full(shape, EXAMPLE_STEP)
        # Multiples of half a step, some beyond the range.
        return rng.integers(2 * LOWEST - 40, 2 * HIGHEST + 40, shape) * (EXAMPLE_STEP / 2)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        if name == STEPS:
            return EXAMPLE_STEPS
        return (Spread(10, -512, EXAMPLE_STEP / 2),)

    def tolerance(self, result: str) -> float:
        return 0.0


def rounded_sums(
    output: SteppedOutput, is_paired: bool, sums: te.Tensor
) -> tuple[te.Tensor, te.Tensor]:
    """The argument with the steps, and sums (rows, weight rows) rounded to them."""
    steps = te.placeholder((output.step_count,), "float32", name=STEPS)

    def value(i: Expr, j: Expr) -> Expr:
        return round_to_step(sums[i, j], step_of(output, is_paired, steps, j))

    return steps, te.compute(sums.shape, value, name="stepped")


def step_of(output: SteppedOutput, is_paired: bool, steps: te.Tensor | Buffer, row: Expr) -> Expr:
    """The step of the sums with a row of the weight; gate and up are `is_paired`."""
    if is_paired:
        return steps[2 * tirx.floormod(row, 2) + 1]
    last = len(output.sections) - 1
    result, end = steps[2 * last + 1], sum(output.sections[:-1])
    for index in reversed(range(last)):
        result = tirx.Select(row < end, steps[2 * index + 1], result)
        end -= output.sections[index]
    return result


def example_of_matmul(
    name: str, bits: int, shape: tuple[int, ...], rng: np.random.Generator
) -> Array | None:
    """As `Operator.example_input`, of a matmul whose sums are rounded: they are exact."""
    if name == "x":
        return rng.integers(LOWEST, HIGHEST + 1, shape) * EXAMPLE_STEP
    if name == STEPS:
        return EXAMPLE_STEP * rng.integers(1, 3, shape) / 2
    if name.startswith("q_scale"):
        return exact_scale(bits) * rng.integers(1, 3, shape) * rng.choice([-1, 1], shape)
    return rng.integers(-32, 32, shape) * 2.0**-9 if name.startswith("weight") else None


def spreads_of_matmul(name: str, bits: int) -> tuple[Spread, ...]:
    """As `example_of_matmul`, of `Operator.known_spreads`."""
    if name == "x":
        return (Spread(8, LOWEST, EXAMPLE_STEP),)
    if name == STEPS:
        return EXAMPLE_STEPS
    if name.startswith("q_scale"):
        return Spread(1, 1, exact_scale(bits)), Spread(1, 1, -exact_scale(bits))
    return (Spread(6, -32, 2.0**-9),) if name.startswith("weight") else ()
