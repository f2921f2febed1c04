"""Matmuls of one position that begin with what comes before them: one launch, not two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.attention_splits import LOWEST, combined_splits, splits_placeholders
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.examples import Sizes, example_lse, own_vector_error
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.moe import RoutedNorm
from gemma4_compile.operators.norms import (
    ExpertNormVector,
    NormVector,
    norm_vector,
)
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.types import Array


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """X rounded to a dtype."""
    return te.compute(x.shape, lambda i, j: x[i, j].astype(dtype), name="rounded")


@dataclass(frozen=True)
class NormedForm(Linear):
    """Fields of `NormedLinear` and `Int8NormedLinear`: those of the norm."""

    eps: float = 0.0
    scaled: bool = False
    normed: bool = True
    branches: int = 1

    @property
    def name(self) -> str:
        return f"normed_{super().name}"

    @property
    def norm(self) -> NormVector | ExpertNormVector:
        """The norm whose result is multiplied."""
        return norm_vector(self.cols, self.eps, self.scaled, self.normed, self.branches)


@dataclass(frozen=True)
class NormedLinear(NormedForm):
    """`ResidualNorm` and the `Linear` that reads its result, for one position.

    ``r' = (r + norm(b; w_branch)) * scalar``, ``y = epilogue(W round(norm(r'; w_next)))``, where
    round is to `in_dtype`; without `normed`, ``y = epilogue(W r')``.

    Arguments: b, r (1, cols) f32; w_branch (cols,) f32; scalar (1,) f32 if `scaled`; w_next (cols,)
    f32 if `normed`; for two branches instead those of `ExpertNormVector`; then as `Linear` from the
    weights on. Results: r' (1, cols) f32 and y.
    """

    kind: ClassVar[str] = "normed_linear"

    def tolerance(self, result: str) -> float:
        # The new residual and the router's scores are made in float32.
        own = 0.0 if result in ("out", "routed") else own_vector_error(self.in_dtype, 1, False)
        return super().tolerance(result) + own

    def definition(self) -> tirx.PrimFunc:
        assert self.rows == 1, "only decode fuses the norm"
        args, out, x = self.norm.definition()
        return self.multiply(args, cast(x, self.in_dtype) if self.normed else x, [out])


@dataclass(frozen=True)
class RoutedForm(Linear):
    """Fields of `RoutedLinear` and `Int8RoutedLinear` besides those of the norm."""

    eps: float = 0.0
    experts: int = 0
    factor: float = 1.0
    router_dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"routed_{super().name}"

    @property
    def routed_norm(self) -> RoutedNorm:
        """The norm whose result is multiplied and routed."""
        return RoutedNorm(self.cols, self.eps, self.experts, self.factor, self.router_dtype)

    @property
    def result_specs(self) -> list[TensorSpec]:
        return [self.routed_norm.result_spec, *super().result_specs]


@dataclass(frozen=True)
class RoutedLinear(RoutedForm, NormedLinear):
    """`NormedLinear`, and `RouterScores` of the same residual next to it.

    Arguments: of `RoutedNorm`; then as `Linear` from the weights on. Results: r' (1, cols) f32;
    that of `RouterScores`; y.
    """

    kind: ClassVar[str] = "routed_linear"

    def definition(self) -> tirx.PrimFunc:
        args, out, x, routed = self.routed_norm.definition()
        return self.multiply(args, cast(x, self.in_dtype), [out, routed])


@dataclass(frozen=True)
class CombinedForm(Linear):
    """Fields of `CombinedLinear` and `Int8CombinedLinear`: those of the combination."""

    heads: int = 0
    head_dim: int = 0
    splits: int = 0

    @property
    def name(self) -> str:
        return f"combined_{super().name}"

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "split_lse":
            return example_lse(shape, LOWEST, rng)
        return super().example_input(name, shape, rng, sizes)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        return LSE if name == "split_lse" else super().known_spreads(name, dtype)


@dataclass(frozen=True)
class CombinedLinear(CombinedForm):
    """`CombineSplits` and the `Linear` that reads its result, for one position.

    Arguments: o_partial (splits, heads, head_dim) in_dtype; split_lse (splits, heads, 2) f32; the
    tensors of all row splits. Result: (1, outputs) f32. The combined vector is rounded to
    `in_dtype`.
    """

    kind: ClassVar[str] = "combined_linear"

    def tolerance(self, result: str) -> float:
        return super().tolerance(result) + own_vector_error(self.in_dtype, 1, False)

    def definition(self) -> tirx.PrimFunc:
        o_partial, split_lse = splits_placeholders(self, self.in_dtype)
        return self.multiply(
            [o_partial, split_lse], cast(combined_splits(o_partial, split_lse), self.in_dtype)
        )
