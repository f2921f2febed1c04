"""The steps that a checkpoint rounds activations to, and what the text decoder takes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gemma4_compile.checkpoint.quantised.modules import DAMAGED, floats
from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    OfOne,
    TensorInfo,
    computed,
    read_rows,
)
from gemma4_compile.checkpoint.spellings import usual_name
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import INPUT_STEP, Parameter
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.text.parameters import HEAD

_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class _NoStep(OfOne):
    """The step of a module that rounds nothing; `stored` is its weight."""

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """One zero."""
        return np.zeros(end - begin, np.float32)


@dataclass(frozen=True)
class _MissingStep(OfOne):
    """A step that a config asks for; `stored` is the weight of its module."""

    name: str

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Raise CheckpointError."""
        raise CheckpointError(
            f"config.json says that activations are rounded by `{self.name}`, and the checkpoint "
            f"has `{self.stored.name}` without it",
            hint=DAMAGED,
        )


def missing_step(name: str, weight: TensorInfo) -> TensorInfo:
    """A step that is not there: an error where it is read, as layers without use are not."""
    return computed(name, (), _MissingStep(weight, name))


@dataclass(frozen=True)
class StepTable:
    """What the text decoder takes: shapes of matrices and the steps, by the names of sources."""

    shapes: Mapping[str, tuple[int, ...]]
    steps: tuple[Parameter, ...]

    @classmethod
    def of(cls, config: Mapping[str, object]) -> StepTable:
        """Read `config.json`."""
        table = TEXT.parameters(Gemma4Config.from_dict(config))
        shapes = {
            source.name: source.shape
            for parameter in table
            for source in parameter.sources
            if len(source.shape) == 2
        }
        steps = (one for one in table if one.sources[0].name.endswith(f".{INPUT_STEP}"))
        return cls(shapes, tuple(steps))


def source_name(tensor: str) -> str:
    """The name that a tensor has in the table of the text decoder's parameters."""
    front = TEXT.prefixes[0]
    usual = usual_name(tensor, front)
    return TEXT.source_name(usual, front if usual.startswith(front) else "")


def step_of(tensor: TensorInfo) -> TensorInfo:
    """A step, if it is one number that values can be divided by, or 0."""
    floats(tensor, (), (1,))
    (step,) = read_rows(tensor, 0, 1).ravel().tolist()
    if not (math.isfinite(step) and step >= 0):
        raise CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` is {step}, expected a step that "
            "activations are rounded to, or 0",
            hint=DAMAGED,
        )
    return replace(tensor, shape=())


def complete_steps(found: dict[str, TensorInfo], text: StepTable) -> None:
    """Add the steps of modules that round nothing, and hold the others against one another.

    Raises
    ------
    CheckpointError
        If matrices that are multiplied as one round their common input differently, or a step is
        not there that the config asks for.
    """
    names = {source_name(name): name for name in found}
    for parameter in text.steps:
        for source in parameter.sources:
            module, _, end = source.name.rpartition(".")
            own = f"{module}.weight"
            tied = names.get(_EMBEDDING) if module == HEAD else None
            weight = names.get(own, tied)
            if source.name not in names and weight is not None:
                name = f"{names.get(own, own).removesuffix('.weight')}.{end}"
                names[source.name] = name
                found[name] = computed(name, (), _NoStep(found[weight]))
        steps: dict[float, str] = {}
        for name in (names[one.name] for one in parameter.sources if one.name in names):
            step = float(read_rows(found[name], 0, 1).ravel()[0])
            if name.endswith(f".{INPUT_STEP}"):
                steps.setdefault(step, name)
        if len(steps) > 1:
            first, second = list(steps.values())[:2]
            raise CheckpointError(
                f"tensors `{first}` and `{second}` differ: layers that read the same values and "
                "round them differently are not compiled",
                hint="the released checkpoints have one step for q, k and v, and for gate and up",
            )
