"""The arguments of a matmul of one position, and what its vector is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.attention_splits import declare_splits
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.tir import FunctionBuilder
from gemma4_compile.operators.types import Buffer
from gemma4_compile.targets.kernels.common.epilogues import EpilogueArguments
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.prologues.expert_norms import ExpertNormArguments
from gemma4_compile.targets.kernels.prologues.router_blocks import (
    RoutedNormArguments,
    declare_router,
)
from gemma4_compile.targets.kernels.prologues.vectors import NormArguments, declare_norm
from gemma4_compile.targets.kernels.weights.int8_lanes import QuantizedVector
from gemma4_compile.targets.kernels.weights.stepped_lanes import SteppedVector


@dataclass(frozen=True)
class GivenVector:
    """The vector is an argument: (1, cols) of floats."""

    x: Buffer


@dataclass(frozen=True)
class SplitVector:
    """The vector is the combination of an attention's splits."""

    o_partial: Buffer
    split_lse: Buffer


Vector: TypeAlias = (
    "GivenVector | QuantizedVector | SteppedVector | SplitVector | NormArguments | "
    "ExpertNormArguments"
)


@dataclass(frozen=True)
class GemvInputs:
    """The arguments of a kernel in front of its results, in call order.

    Attributes
    ----------
    router : what routes in the same launch, with its arguments, or None
    after : what the epilogue reads
    """

    router: RoutedNormArguments | None
    vector: Vector
    weights: WeightReader
    after: EpilogueArguments

    @classmethod
    def declare(
        cls, build: FunctionBuilder, operator: Linear, vector: Vector | None = None
    ) -> GemvInputs:
        """Declare them, but for a `vector` that is an argument already."""
        router = declare_router(build, operator)
        if vector is None:
            vector = router.norm_arguments if router else _declare_vector(build, operator)
        weights = WeightReader(build, operator.layout)
        return cls(router, vector, weights, EpilogueArguments.declare(build, operator, 1))


@dataclass(frozen=True)
class GemvArguments(GemvInputs):
    """All arguments of a kernel.

    Attributes
    ----------
    out : where the new residual goes; None without a norm
    results : of the matmul
    routed : the router's result
    """

    out: Buffer | None
    results: Sequence[Buffer]
    routed: Buffer | None

    @classmethod
    def declare(
        cls, build: FunctionBuilder, operator: Linear, vector: Vector | None = None
    ) -> GemvArguments:
        """Declare them."""
        return cls.of(build, operator, GemvInputs.declare(build, operator, vector))

    @classmethod
    def of(cls, build: FunctionBuilder, operator: Linear, inputs: GemvInputs) -> GemvArguments:
        """Declare the results."""
        norms = operator.prologue.writes_residual
        out = build.arg("out", (1, operator.cols), "float32") if norms else None
        specs = operator.result_specs
        names = [f"y{index}" for index in range(len(specs))]
        if not operator.is_int8:
            names = ["routed", "y"] if inputs.router else ["y"]
        results = [build.arg(name, *spec) for name, spec in zip(names, specs, strict=True)]
        routed = results.pop(0) if inputs.router else None
        return cls(**vars(inputs), out=out, results=results, routed=routed)


def _declare_vector(build: FunctionBuilder, operator: Linear) -> Vector:
    """The arguments in front of the weights."""
    match operator.prologue:
        case Norm() as norm:
            return declare_norm(build, norm.vector(operator.cols))
        case Combine() as combine:
            return SplitVector(*declare_splits(build, combine, operator.in_dtype))
    if operator.in_dtype == PACKED and operator.steps_in:
        return SteppedVector(build, operator.cols)
    if operator.in_dtype == PACKED:
        return QuantizedVector(build, operator.cols)
    return GivenVector(build.arg("x", (1, operator.cols), operator.in_dtype))
