"""A request to compile: the options of `gemma4-compile`, checked one by one, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.input_files import Lock
from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET, SHAPES, WIDE
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.options import compile as options
from gemma4_compile.options.dump import DumpOption
from gemma4_compile.package.partial_build import PartialBuild
from gemma4_compile.quantization.recipe_file import Overrides
from gemma4_compile.targets.libraries import LibraryForm
from gemma4_compile.targets.spec import NATIVE

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
    shard_bytes: int | None = None  # most of a file of weights
    dump_ir: DumpOption | None = None
    activations: str = AUTO
    float16: str = NATIVE  # how kernels read float16 weights
    modalities: frozenset[Modality] | None = TEXT_ONLY  # None: all that the checkpoint has
    image_tokens: int | None = None  # rows of a picture, at most
    image_shape: str = WIDE  # of the stock client's picture
    overrides: Overrides = ()  # schemes by parameter pattern, of --recipe
    drafter: str | None = None  # hub id or directory of the model's drafter
    tokenizer: str | None = None  # hub id or directory of the tokenizer, of a model in GGUF
    adapters: tuple[str, ...] = ()  # hub ids or directories, in the order of merging
    allow_nonfinite: bool = False  # store 0 for weights that are not finite
    lock: Lock | None = None  # what the files must be, of a package that is made again
    libraries: tuple[LibraryForm, ...] = ()  # several; none: one of target, limits, activations
    probe: bool = False  # a library for `verification`, which returns what lies between layers


def modalities_of(text: str) -> frozenset[Modality] | None:
    """The value of --modalities; UsageError for a name that is none."""
    names = options.modalities(text)
    return None if names is None else frozenset(map(Modality, names))


def image_tokens(request: CompileRequest, config: Gemma4Config) -> int:
    """Return the most rows of a picture: the user's choice, or the usual ones.

    UsageError for a number or a shape that pictures do not have, or of a package without pictures.
    """
    tokens, shape = request.image_tokens, request.image_shape
    if tokens is not None and tokens not in BUDGETS:
        raise UsageError(
            f"--image-tokens: expected one of {', '.join(map(str, BUDGETS))}, found {tokens}",
            hint=f"leave it out for {DEFAULT_BUDGET}",
        )
    if shape not in SHAPES:
        raise UsageError(f"unknown image shape `{shape}`", hint=f"known: {', '.join(SHAPES)}")
    if config.vision is None and (tokens is not None or shape != WIDE):
        option = "--image-tokens" if tokens is not None else "--image-shape"
        raise UsageError(
            f"{option}: this package takes no pictures",
            hint="leave it out, or compile a model that has them with --modalities text,image",
        )
    return DEFAULT_BUDGET if tokens is None else tokens
