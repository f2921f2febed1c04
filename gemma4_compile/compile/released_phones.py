"""Checkpoints for phones of which the config alone is at hand: as the released ones are stored.

`--plan` of a hub id and `--only library` download no tensors, off which bits are read otherwise.
What is known of the released sizes takes their place, and is said to be assumed: a config maps
patterns of names to bits, and the patterns of a stranger are not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.model_spec.text.parameters import MODEL_PROJECTION
from gemma4_compile.options.process import warn
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.quantization.schemes import MOBILE

_TABLE_BITS = 2
_COARSE = RowScheme(2).name
_BFLOAT16 = "q0bf16"


@dataclass(frozen=True)
class ReleasedPhone:
    """Bits of one size, where they are not those of the recipe.

    Attributes
    ----------
    preset : the size that it is a form of
    table_bits : of the per-layer table, whose blocks are a layer's columns
    first_coarse : the first layer whose MLP has 2 bits
    """

    preset: str
    table_bits: int
    first_coarse: int

    def scheme(self, parameter: Parameter, config: Gemma4Config) -> str:
        """The name of the scheme of a matrix."""
        if parameter.name == MODEL_PROJECTION:
            return _BFLOAT16
        if parameter.role is Role.PER_LAYER_EMBEDDING:
            return RowScheme(self.table_bits, config.hidden_size_per_layer_input).name
        kind, *rest = parameter.name.split(".")
        is_mlp = kind == "layers" and rest[1] == "mlp"
        if is_mlp and int(rest[0]) >= self.first_coarse:
            return _COARSE
        return MOBILE.scheme(parameter).name


RELEASED = (
    ReleasedPhone("gemma-4-E2B-it", 4, 15),
    ReleasedPhone("gemma-4-E4B-it", _TABLE_BITS, 42),
)


def released_of(config: Gemma4Config) -> ReleasedPhone | None:
    """The released checkpoint for phones of a model's size; None of another one."""
    return next((one for one in RELEASED if _size(_preset(one)) == _size(config)), None)


def as_phone(request: CompileRequest, source: ModelSource) -> ModelSource:
    """The source as the checkpoint for phones of its size, if only its config is at hand.

    A preset stands for that checkpoint where the recipe is its own; heads of the released ones are
    the token embedding, stored twice.
    """
    kind = source.origin.get("kind")
    if request.quant != MOBILE.name or source.checkpoint is not None or kind == "directory":
        return source
    if kind != "preset" and not source.config.rounds_activations:
        return source
    released = released_of(source.config)
    if released is None:
        return source
    warn(
        f"--quant {MOBILE.name}: without the checkpoint's tensors their bits are assumed to be "
        f"those of the released `{released.preset}-qat-mobile-transformers`",
        "give the directory of a downloaded checkpoint to read them off it",
    )
    config = replace(source.config, rounds_activations=True, ties_head=True)
    return replace(source, config=config)


def assumed_schemes(config: Gemma4Config, table: Mapping[str, Parameter]) -> dict[str, str] | None:
    """Schemes of the matrices by their names; None where no such checkpoint is known."""
    released = released_of(config)
    if released is None:
        return None
    return {name: released.scheme(parameter, config) for name, parameter in table.items()}


def _preset(released: ReleasedPhone) -> Gemma4Config:
    return Gemma4Config.from_preset(released.preset)


def _size(config: Gemma4Config) -> tuple[int, ...]:
    return (
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.hidden_size_per_layer_input,
        config.vocab_size,
    )
