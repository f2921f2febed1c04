"""A request to compile: the options of `gemma4-compile`, checked one by one, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemma4_compile import options
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.package.partial_build import PartialBuild
from gemma4_compile.quantization.recipe_file import Overrides

AUTO = options.ACTIVATIONS[0]


@dataclass(frozen=True)
class CompileRequest:
    """Options of a compilation; None means the default."""

    model: str
    target: str
    quant: str
    output: Path
    limits: str = "default"
    context_length: int | None = None
    prefill_chunk: int | None = None
    only: PartialBuild | None = None
    revision: str | None = None
    force: bool = False
    dump_ir: Path | None = None
    activations: str = AUTO
    modalities: frozenset[Modality] | None = TEXT_ONLY  # None: all that the checkpoint has
    overrides: Overrides = ()  # schemes by parameter pattern, of --recipe
    allow_nonfinite: bool = False  # store 0 for weights that are not finite
    probe: bool = False  # a library for `verification`, which returns what lies between layers


def modalities_of(text: str) -> frozenset[Modality] | None:
    """The value of --modalities; UsageError for a name that is none."""
    names = options.modalities(text)
    return None if names is None else frozenset(map(Modality, names))
