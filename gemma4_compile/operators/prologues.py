"""Prologues of a matmul of one position: what makes its vector in the same launch.

The base class is the one of no prologue: the vector comes as it is. A kernel asks for the others by
`match`; what each computes is its `make`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tvm import te

from gemma4_compile.operators.attention_splits import LOWEST, combined_splits, splits_placeholders
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.examples import example_lse
from gemma4_compile.operators.moe import RoutedNorm
from gemma4_compile.operators.norms import ExpertNormVector, NormVector, norm_vector
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.types import Array


@dataclass(frozen=True)
class MadeVector:
    """What a prologue declares and computes.

    Attributes
    ----------
    args : the arguments in front of the weights
    results : those that it has besides the matmul's
    x : (1, cols) float32
    is_rounded : the matmul rounds x to its dtype, as the launch of its own would
    """

    args: list[te.Tensor]
    results: list[te.Tensor]
    x: te.Tensor
    is_rounded: bool = True


@dataclass(frozen=True)
class Prologue:
    """None: the vector comes as it is."""

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[Prologue]:
        """Return the class of a prologue from its fields."""
        forms = {vars(one)["form"]: one for one in cls.__subclasses__()}
        return forms.get(values.get("form"), cls)

    @property
    def prefix(self) -> str:
        """What a kernel's name begins with."""
        return ""

    @property
    def branches(self) -> int:
        """Vectors that are added to the residual first."""
        return 0

    @property
    def writes_residual(self) -> bool:
        """Whether the new residual is a result, too."""
        return False

    def make(self, cols: int, in_dtype: str) -> MadeVector:
        """The definition."""
        x = te.placeholder((1, cols), in_dtype, name="x")
        return MadeVector([x], [], x)

    def result_specs(self, cols: int) -> list[TensorSpec]:
        """Its results besides the new residual."""
        return []

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        """As `Operator.example_input`, of its own arguments."""
        return None

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        """As `Operator.known_spreads`; empty where the default does."""
        return ()


@dataclass(frozen=True)
class Norm(Prologue):
    """`ResidualNorm`.

    Arguments: of `NormVector` or, for two branches, of `ExpertNormVector`. Results: r' (1, cols)
    f32. Without `normed` the vector is r' itself.
    """

    eps: float = 0.0
    scaled: bool = False
    normed: bool = True
    count: int = 1
    form: str = "norm"

    @property
    def prefix(self) -> str:
        return "normed_"

    @property
    def branches(self) -> int:
        return self.count

    @property
    def writes_residual(self) -> bool:
        return True

    def vector(self, cols: int) -> NormVector | ExpertNormVector:
        """The norm whose result is multiplied."""
        return norm_vector(cols, self.eps, self.scaled, self.normed, self.count)

    def make(self, cols: int, in_dtype: str) -> MadeVector:
        args, out, x = self.vector(cols).definition()
        return MadeVector(args, [out], x, is_rounded=self.normed)


@dataclass(frozen=True)
class Routed(Prologue):
    """A norm of stacked weights, and `RouterScores` of the same residual next to the matmul.

    Arguments: of `RoutedNorm`. Results: r' (1, cols) f32; that of `RouterScores`.
    """

    eps: float = 0.0
    experts: int = 0
    factor: float = 1.0
    router_dtype: str = "float32"
    form: str = "routed"

    @property
    def prefix(self) -> str:
        return "routed_normed_"

    @property
    def branches(self) -> int:
        return 1

    @property
    def writes_residual(self) -> bool:
        return True

    def norm(self, cols: int) -> RoutedNorm:
        """The norm whose result is multiplied and routed."""
        return RoutedNorm(cols, self.eps, self.experts, self.factor, self.router_dtype)

    def make(self, cols: int, in_dtype: str) -> MadeVector:
        args, out, x, routed = self.norm(cols).definition()
        return MadeVector(args, [out, routed], x)

    def result_specs(self, cols: int) -> list[TensorSpec]:
        return [self.norm(cols).result_spec]


@dataclass(frozen=True)
class Combine(Prologue):
    """`CombineSplits`: the splits of an attention put together.

    Arguments: o_partial (splits, heads, head_dim) in_dtype; split_lse (splits, heads, 2) f32.
    """

    heads: int = 0
    head_dim: int = 0
    splits: int = 0
    form: str = "combine"

    @property
    def prefix(self) -> str:
        return "combined_"

    def make(self, cols: int, in_dtype: str) -> MadeVector:
        o_partial, split_lse = splits_placeholders(self, in_dtype)
        return MadeVector([o_partial, split_lse], [], combined_splits(o_partial, split_lse))

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        return example_lse(shape, LOWEST, rng) if name == "split_lse" else None

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        return LSE if name == "split_lse" else ()


PLAIN = Prologue()
