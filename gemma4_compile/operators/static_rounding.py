"""Values held to whole steps of int8 whose size a checkpoint fixes: before and after a matmul.

Google's checkpoints for phones were trained with it. A step of 0 rounds nothing. Ties go to the
even number: products of two such values lie on a tie often, where other values never do.

References
----------
transformers 5.24.0, `apply_srq` of `integrations/gemma_quant.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import WORD, byte_of
from gemma4_compile.operators.activations import AS_FLOATS, INTERLEAVED, SteppedOutput
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.pointwise import Columns
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

LOWEST, HIGHEST = -128, 127
STEPS, READER_STEPS = "steps", "reader_steps"
"""The argument with the steps of a matrix: of inputs and of outputs in turn, a pair a source; and
that with those of the matrix that reads a result."""
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


def step_word(values: Sequence[Expr], step: Expr, interleaved: bool) -> Expr:
    """The word of four neighbouring channels, as integers of a step that is no 0."""

    def whole(value: Expr) -> Expr:
        return nearest_even(tirx.max(tirx.min(value / step, f32(HIGHEST)), f32(LOWEST)))

    return word_of_wholes([whole(value) for value in values], interleaved)


def word_of_wholes(values: Sequence[Expr], interleaved: bool) -> Expr:
    """The word of four whole numbers in float32 that int8 has."""
    word: Expr = tirx.const(0, "uint32")
    for byte in range(WORD):
        integer = values[byte_of(byte, interleaved)].astype("int32").astype("uint32")
        lowest = tirx.bitwise_and(integer, tirx.const(255, "uint32"))
        word = tirx.bitwise_or(word, tirx.shift_left(lowest, tirx.const(8 * byte, "uint32")))
    return word


def words_spec(width: int, rows: Index = 1) -> TensorSpec:
    """Shape and dtype of vectors in words, whose step is elsewhere."""
    return (rows, width // WORD), "uint32"


def step_words(x: te.Tensor, step: Expr, interleaved: bool) -> te.Tensor:
    """Vectors (rows, width) in words, by a step that is no 0."""
    shape, _ = words_spec(int(x.shape[1]), x.shape[0])

    def word(i: Expr, w: Expr) -> Expr:
        return step_word([as_f32(x[i, w * WORD + c]) for c in range(WORD)], step, interleaved)

    return te.compute(shape, word, name="words")


def steps_of_words(words: te.Tensor, step: Expr, interleaved: bool) -> te.Tensor:
    """The vectors (rows, width) float32 of such words."""

    def value(i: Expr, k: Expr) -> Expr:
        byte = byte_of(tirx.floormod(k, WORD), interleaved)
        above = ((WORD - 1 - byte) * 8).astype("uint32")
        top = tirx.shift_left(words[i, k // WORD], above).astype("int32")
        return as_f32(tirx.shift_right(top, tirx.const(24, "int32"))) * step

    return te.compute((words.shape[0], int(words.shape[1]) * WORD), value, name="meaning")


def rounded_to(x: te.Tensor, step: Expr) -> te.Tensor:
    """Vectors (rows, width) rounded to a step: float32."""
    return te.compute(x.shape, lambda i, j: round_to_step(as_f32(x[i, j]), step), name="meaning")


@dataclass(frozen=True)
class RoundToStep(Columns):
    """The inputs of a matmul, rounded to the first of its steps.

    Arguments: x (rows, width) in_dtype; steps (count,) f32. Result: (rows, width) f32 or, where
    `result` is another form, (rows, width / 4) words by a step that is no 0.
    """

    kind: ClassVar[str] = "round_to_step"
    in_dtype: str
    count: int
    result: str = AS_FLOATS

    @property
    def outputs(self) -> int:
        return self.width if self.result == AS_FLOATS else self.width // WORD

    @property
    def result_dtype(self) -> str:
        return "float32" if self.result == AS_FLOATS else "uint32"

    @property
    def packs(self) -> bool:
        return self.result != AS_FLOATS

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [("x", ((rows, self.width), self.in_dtype)), (STEPS, ((self.count,), "float32"))]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        x, steps = args
        if self.result == AS_FLOATS:
            return round_to_step(as_f32(x[i, j]), steps[0])
        values = [as_f32(x[i, j * WORD + c]) for c in range(WORD)]
        return step_word(values, steps[0], self.result == INTERLEAVED)

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
    output: SteppedOutput, is_paired: bool, steps: te.Tensor, sums: te.Tensor
) -> te.Tensor:
    """Sums (rows, weight rows) rounded to their steps."""

    def value(i: Expr, j: Expr) -> Expr:
        return round_to_step(sums[i, j], step_of(output, is_paired, steps, j))

    return te.compute(sums.shape, value, name="stepped")


def step_of(
    output: SteppedOutput,
    is_paired: bool,
    steps: te.Tensor | Buffer | Mapping[int, Expr],
    row: Expr,
) -> Expr:
    """The step of the sums with a row of the weight; gate and up are `is_paired`."""
    if is_paired:
        return tirx.Select(tirx.floormod(row, 2) == 0, steps[1], steps[3])
    last = len(output.sections) - 1
    result, end = steps[2 * last + 1], sum(output.sections[:-1])
    for index in reversed(range(last)):
        result = tirx.Select(row < end, steps[2 * index + 1], result)
        end -= output.sections[index]
    return result


def stepped_vector_error(cols: int) -> float:
    """Return what a vector that a kernel makes adds to the error of its sums, relative to them.

    Of values with a deviation of 1 one is a step off, times a weight of 2 deviations, where the
    largest result is about 3.5 sqrt(cols). Twice.
    """
    return 2 * 2 * EXAMPLE_STEP / 3.5 / sqrt(cols)


def example_of_matmul(
    name: str, bits: int, shape: tuple[int, ...], rng: np.random.Generator, is_plain: bool
) -> Array | None:
    """As `Operator.example_input`, of a matmul whose sums are rounded: they are exact.

    Those of a vector that the kernel makes are not, and are not rounded: their steps are 0.
    """
    if name == "x":
        return rng.integers(LOWEST, HIGHEST + 1, shape) * EXAMPLE_STEP
    if name == READER_STEPS:
        return np.full(shape, EXAMPLE_STEP / 4)
    if name == STEPS and is_plain:
        return EXAMPLE_STEP * rng.integers(1, 3, shape) / 2
    if name == STEPS:
        return EXAMPLE_STEP * (1 - np.arange(shape[0]) % 2)
    if name.startswith("q_scale"):
        return exact_scale(bits) * rng.integers(1, 3, shape) * rng.choice([-1, 1], shape)
    return rng.integers(-32, 32, shape) * 2.0**-9 if name.startswith("weight") else None


def spreads_of_matmul(name: str, bits: int, is_plain: bool) -> tuple[Spread, ...]:
    """As `example_of_matmul`, of `Operator.known_spreads`."""
    if name == "x":
        return (Spread(8, LOWEST, EXAMPLE_STEP),)
    if name == READER_STEPS:
        return (Spread(0, 1, EXAMPLE_STEP / 4),)
    if name == STEPS:
        return EXAMPLE_STEPS if is_plain else (Spread(0, 1, EXAMPLE_STEP), Spread(0, 0, 1))
    if name.startswith("q_scale"):
        return Spread(1, 1, exact_scale(bits)), Spread(1, 1, -exact_scale(bits))
    return (Spread(6, -32, 2.0**-9),) if name.startswith("weight") else ()
