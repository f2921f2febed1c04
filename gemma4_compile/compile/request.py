"""A request to compile: what the options of `gemma4-compile` name, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.checkpoint.input_files import Lock
from gemma4_compile.checkpoint.sources import SHIPPED
from gemma4_compile.checkpoint.trained import is_for_phones, is_named_trained
from gemma4_compile.media.sizes import WIDE
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.options.budget import Budget, budget_of
from gemma4_compile.options.compile import CompileOptions
from gemma4_compile.options.dump import DumpOption
from gemma4_compile.options.libraries import ALL, DEFAULT_LIMITS
from gemma4_compile.options.package import (
    ACTIVATIONS,
    DEFAULT_MODEL,
    DEFAULT_QUANT,
    MOBILE,
    TRAINED_QUANT,
)
from gemma4_compile.options.process import warn
from gemma4_compile.package.partial_build import PartialBuild
from gemma4_compile.quantization.recipe_file import Overrides, read_recipe_file, with_overrides
from gemma4_compile.targets.libraries import LibraryForm, fitting_forms
from gemma4_compile.targets.spec import NATIVE
from gemma4_compile.types import JsonObject

AUTO = ACTIVATIONS[0]


@dataclass(frozen=True)
class UsualRecipe:
    """Of a request that names no recipe: why it has the one that it has.

    Attributes
    ----------
    why : None until the model has been looked at (`usual_recipe`)
    is_trained : recipes of 4 bits with a signed scale hold the weights exactly
    """

    why: str | None = None
    is_trained: bool = False

    @property
    def is_decided(self) -> bool:
        """Return whether the model has been looked at."""
        return self.why is not None


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
    fit: Budget | None = None  # chooses what is not given
    fit_keeps: frozenset[str] = frozenset()  # choices that are given
    fitted: JsonObject | None = None  # what a budget has chosen, for provenance
    usual: UsualRecipe | None = None  # the recipe is not given
    probe: bool = False  # a library for `verification`, which returns what lies between layers

    @property
    def usual_text(self) -> str | None:
        """The recipe and why it was chosen; None where it was given."""
        return None if self.usual is None else f"{self.quant}: {self.usual.why}"


def with_quant(request: CompileRequest, quant: str) -> CompileRequest:
    """The request with another recipe, and those of its libraries that differ in that one."""
    recipe = with_overrides(quant, request.overrides)
    forms = fitting_forms(
        [form.name for form in request.libraries],
        has_float16=recipe.has_float16,
        takes_int8=recipe.takes_int8,
    )
    return replace(request, quant=quant, libraries=forms)


def modalities_of(names: Sequence[str] | None) -> frozenset[Modality] | None:
    """The modalities of those names; None is all that the checkpoint has."""
    return None if names is None else frozenset(map(Modality, names))


def compile_request(options: CompileOptions) -> CompileRequest:
    """What a command line asks for: names are looked up, and what it leaves out is filled in.

    What depends on the model is left to `resolve.sizes_of`.
    """
    overrides = () if options.recipe is None else read_recipe_file(options.recipe)
    quant = options.quant or _usual_quant(options.model)
    return CompileRequest(
        model=options.model or DEFAULT_MODEL,
        target=options.target[0],
        quant=quant,
        output=options.output or Path(),
        limits=options.limits or DEFAULT_LIMITS,
        context_length=options.context,
        prefill_chunk=options.prefill_chunk,
        only=options.only,
        revision=options.revision,
        force=options.force,
        shard_bytes=options.shard_size,
        dump_ir=options.dump_ir,
        activations=options.activations or AUTO,
        float16=options.float16 or NATIVE,
        modalities=modalities_of(options.modalities),
        image_tokens=options.image_tokens,
        image_shape=options.image_shape,
        overrides=overrides,
        drafter=options.drafter,
        tokenizer=options.tokenizer,
        adapters=options.adapter,
        allow_nonfinite=options.allow_nonfinite,
        libraries=_forms(options, quant, overrides),
        fit=None if options.fit is None else budget_of(options.fit, options.target),
        fit_keeps=_kept(options, quant),
        usual=UsualRecipe() if options.quant is None else None,
    )


def _kept(options: CompileOptions, quant: str) -> frozenset[str]:
    """The choices that --fit does not make, for they are given; none without it."""
    if options.fit is None:
        return frozenset()
    given = {
        "recipe": options.quant is not None or options.recipe is not None or quant == MOBILE,
        "libraries": options.libraries not in ((), (ALL,)) or not options.library_names,
        "context": options.context is not None,
        "prefill_chunk": options.prefill_chunk is not None,
    }
    return frozenset(name for name, is_given in given.items() if is_given)


def _usual_quant(model: str | None) -> str:
    """The recipe of a model for which none is named, as far as it is known before it is opened."""
    name = DEFAULT_MODEL if model is None else model
    if is_for_phones(name):
        return MOBILE
    return TRAINED_QUANT if name in SHIPPED or is_named_trained(name) else DEFAULT_QUANT


def _forms(options: CompileOptions, quant: str, overrides: Overrides) -> tuple[LibraryForm, ...]:
    """The libraries that are named, of those that a recipe tells apart."""
    names, recipe = options.library_names, with_overrides(quant, overrides)
    forms = fitting_forms(names, has_float16=recipe.has_float16, takes_int8=recipe.takes_int8)
    found = [form.name for form in forms]
    same = [name for name in names if name not in found]
    if same and options.libraries not in ((), (ALL,)) and not options.report:
        warn(
            f"--quant {quant} stores nothing that these libraries would read otherwise: "
            f"{', '.join(same)}",
            f"instead of them there is {', '.join(found)}",
        )
    return forms
