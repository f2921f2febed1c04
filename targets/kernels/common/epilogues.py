"""The epilogues of a matmul: what happens to sums before they are stored.

Meaning: `Epilogue` in operators/epilogue.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import tirx

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import f32, gelu_tanh
from gemma4_compile.operators.static_rounding import (
    HIGHEST,
    LOWEST,
    READER_STEPS,
    STEPS,
    round_to_step,
    step_of,
)
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.builtins import nearest

Steps: TypeAlias = "Buffer | Mapping[int, Expr]"
"""An argument, or its values by place."""


@dataclass(frozen=True)
class EpilogueArguments:
    """What an epilogue reads besides the sums; None what it does not need.

    Attributes
    ----------
    steps : that sums are rounded to
    readers : steps of the matmul for which the result is rounded
    ple, layer : the per-layer inputs and the layer index
    """

    steps: Steps | None
    readers: Steps | None
    ple: Buffer | None
    layer: Expr | None

    @classmethod
    def declare(cls, build: FunctionBuilder, operator: Linear, rows: Index) -> EpilogueArguments:
        """Declare them, behind the weights."""
        steps, readers, stepped = None, None, operator.stepped_out
        if stepped is not None:
            steps = build.arg(STEPS, (stepped.step_count,), "float32")
            if stepped.reader_steps:
                readers = build.arg(READER_STEPS, (stepped.reader_steps,), "float32")
        if operator.epilogue != Epilogue.GELU_GATE.value:
            return cls(steps, readers, None, None)
        ple = build.arg("ple", (rows, operator.ple_width), "float32")
        return cls(steps, readers, ple, build.scalar_arg("layer"))

    def read(self) -> EpilogueArguments:
        """The same with values of steps, which are read where this is called.

        At a kernel's begin they come with the weights. Behind the sums nothing else is under way,
        and a launch of a small matmul waits for memory once more.
        """
        return replace(self, steps=_values(self.steps), readers=_values(self.readers))

    @property
    def input_step(self) -> Expr:
        """The step of the inputs."""
        assert self.steps is not None, "an argument of such matmuls"
        return self.steps[0]

    def for_reader(self, value: Expr) -> Expr:
        """A result, rounded to the step of what reads it where that is an argument."""
        return value if self.readers is None else round_to_step(bind(value), self.readers[0])


def apply_epilogue(
    operator: Linear,
    y: Buffer,
    i: Index,
    first: Expr,
    sums: Sequence[Expr],
    args: EpilogueArguments,
) -> None:
    """Store the sums of consecutive weight rows from `first` on, as row i of y.

    Rows beyond the matrix are dropped.

    Parameters
    ----------
    sums : float32 expressions; an even number, from an even row on, where the epilogue pairs rows
    """
    rows, ple, layer = operator.layout.rows, args.ple, args.layer
    if args.steps is not None:
        sums = _rounded(operator, first, sums, args.steps)
    if operator.is_paired:
        for r in range(0, len(sums), 2):
            with when(first + r < rows):
                value = gelu_tanh(bind(sums[r])) * sums[r + 1]
                store(y, args.for_reader(value), i, (first + r) // 2)
        return
    for r, total in enumerate(sums):
        column = bind(first + r)
        with when(column < rows):
            if operator.epilogue == Epilogue.GELU_GATE.value:
                assert ple is not None, "an argument of this epilogue"
                assert layer is not None, "an argument of this epilogue"
                value = gelu_tanh(bind(total)) * ple[i, i32(layer) * rows + column]
                store(y, args.for_reader(value), i, column)
            else:
                store(y, args.for_reader(operator.logit(total, column)), i, column)


def gated(operator: Linear, first: Expr, sums: Sequence[Expr], args: EpilogueArguments) -> Expr:
    """The product of gate and up, which are the rows of the weight from an even one on."""
    if args.steps is not None:
        sums = _rounded(operator, first, sums, args.steps)
    return gelu_tanh(bind(sums[0])) * sums[1]


def _values(steps: Steps | None) -> Steps | None:
    """The values of the steps that somebody asks for: the first, and those of results."""
    if not isinstance(steps, tirx.Buffer):
        return steps
    return {at: bind(steps[at]) for at in (0, *range(1, int(steps.shape[0]), 2))}


def _rounded(operator: Linear, first: Expr, sums: Sequence[Expr], steps: Steps) -> Sequence[Expr]:
    """The sums from a row of the weight on, rounded to their steps, each a variable.

    GELU names its argument two dozen times. Written out there, roundings took longer than the sums.
    """
    output = operator.stepped_out
    assert output is not None, "an argument of such outputs"
    rounded = _nearest_multiple if operator.is_int8 else round_to_step
    own = [bind(step_of(output, operator.is_paired, steps, first + r)) for r in range(len(sums))]
    return [
        materialize(rounded(bind(total), step), "float32")
        for total, step in zip(sums, own, strict=True)
    ]


def _nearest_multiple(value: Expr, step: Expr) -> Expr:
    """As `round_to_step`, where a device has a rounding to the even of two."""
    held = tirx.max(tirx.min(value / step, f32(HIGHEST)), f32(LOWEST))
    return tirx.Select(step != f32(0.0), nearest(held) * step, value)
