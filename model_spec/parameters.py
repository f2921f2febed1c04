"""Parameters of a model: their sources in the checkpoint, their shapes and their roles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Role(str, Enum):
    """Role of a parameter; the quantisation recipe chooses a scheme by it."""

    TOKEN_EMBEDDING = "token_embedding"  # also the head where that is tied
    LM_HEAD = "lm_head"  # of its own
    DRAFTER_HEAD = "drafter_head"  # tied or not: it costs a draft its time, and no reply its words
    PER_LAYER_EMBEDDING = "per_layer_embedding"
    LINEAR = "linear"
    PER_LAYER_LINEAR = "per_layer_linear"  # the small projections around the per-layer embedding
    EXPERTS = "experts"
    AUDIO_LINEAR = "audio_linear"
    ROUTER = "router"  # its choice is discrete, so it is never quantised
    VISION_LINEAR = "vision_linear"  # of the vision tower, its position table too
    VECTOR = "vector"  # norm weights, layer scalars and clips


class Arrangement(str, Enum):
    """Arrangement of the source tensors' rows in the parameter."""

    COPY = "copy"
    CONCAT_ROWS = "concat_rows"
    INTERLEAVE_ROWS = "interleave_rows"  # row 2r from the first source, row 2r + 1 from the second
    INTERLEAVE_HALVES = "interleave_halves"  # the same for the halves of each matrix of a stack
    STACK = "stack"  # each source is a vector, and a row
    SCALARS = "scalars"  # each source is a scalar, and an element


@dataclass(frozen=True)
class Source:
    """A checkpoint tensor; its name as `Component.source_name` gives it.

    Attributes
    ----------
    is_ids : it holds token ids as integers, each of the vocabulary once
    twin : another name under which a checkpoint may hold it, in its place or beside it; of two the
        twin is read
    """

    name: str
    shape: tuple[int, ...]
    is_ids: bool = False
    twin: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it may have."""
        return (self.name,) if self.twin is None else (self.name, self.twin)


@dataclass(frozen=True)
class Parameter:
    """A model parameter.

    Attributes
    ----------
    name : as in the checkpoint, or the fused name; without `.weight`
    shape : (rows, cols) of a matrix, (n,) of a vector; of a convolution's weight all dimensions
        but the last are its rows
    scale : a power of two that the stored weight carries (so folding it is exact)
    row_group : rows that stay together when the parameter is split: those of one expert
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    arrangement: Arrangement = Arrangement.COPY
    scale: float = 1.0
    row_group: int = 1


INPUT_STEP, OUTPUT_STEP = "input_activation_scale", "output_activation_scale"
"""Of a module whose inputs and outputs a checkpoint rounds: as transformers names their steps."""


def steps_name(matrix: str) -> str:
    """The name of the parameter with the steps of a matrix."""
    return f"{matrix}.steps"


def steps_of(matrix: Parameter) -> Parameter:
    """What the inputs and outputs of a matrix are rounded to: a pair for each of its sources."""
    modules = [source.name.removesuffix(".weight") for source in matrix.sources]
    sources = tuple(
        Source(f"{module}.{end}", ()) for module in modules for end in (INPUT_STEP, OUTPUT_STEP)
    )
    shape = (len(sources),)
    return Parameter(steps_name(matrix.name), Role.VECTOR, shape, sources, Arrangement.SCALARS)


def is_power_of_two(value: float) -> bool:
    """Return whether multiplying by `value` is exact in binary floating point."""
    return value > 0 and math.frexp(value)[0] == 0.5


def folded_scale(scale: float) -> float:
    """The part of a constant scale that the weights carry: all if that is exact, else 1."""
    return scale if is_power_of_two(scale) else 1.0
