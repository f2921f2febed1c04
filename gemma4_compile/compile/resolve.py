"""What a request comes to: nothing after this asks what was given, or knows a default.

`choose` needs no model: recipe, libraries, and how tensors are split. `sizes_of` needs its config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemma4_compile import abi
from gemma4_compile.compile.request import AUTO, CompileRequest
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.sizes import DEFAULT_BUDGET, WIDE
from gemma4_compile.model_spec.config.embedding import MOST_TEXT_TOKENS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.options.package import (
    DEFAULT_CONTEXT_LENGTH,
    DEFAULT_PREFILL_CHUNK,
    DEFAULT_TEXT_TOKENS,
    OLD_ACTIVATIONS,
    check_image_tokens,
    parse_image_shape,
)
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.partial_build import SHARD_SIZE
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TARGETS, TargetSpec, strictest, target_spec
from gemma4_compile.targets.libraries import LibraryForm, form_name
from gemma4_compile.targets.spec import ACTIVATIONS, FLOAT, INT8, NATIVE, WORDS


@dataclass(frozen=True)
class ChosenLibrary:
    """A library: what it is called, what it is compiled for, and the recipe that its kernels read.

    Attributes
    ----------
    float16 : how it takes a recipe's float16; None where the recipe has none
    """

    name: str
    target: TargetSpec
    recipe: Recipe
    float16: str | None


@dataclass(frozen=True)
class Choices:
    """What a request comes to for any model.

    Attributes
    ----------
    recipe : of the weights
    libraries : those that are made, the main one first
    splits : the target whose bindings split large tensors
    shard_bytes : most of a file of weights; None for the usual
    """

    recipe: Recipe
    libraries: tuple[ChosenLibrary, ...]
    splits: TargetSpec
    shard_bytes: int | None

    @property
    def main(self) -> ChosenLibrary:
        """The main library."""
        return self.libraries[0]


@dataclass(frozen=True)
class Sizes:
    """What a request comes to for a model: longest sequence, prefill chunk, rows of a picture."""

    context_length: int
    prefill_chunk: int
    image_tokens: int


def choose(request: CompileRequest) -> Choices:
    """Look names up, and let the package that a partial build goes on with have its say.

    UsageError for what is unknown or does not fit together, ArtifactError for a damaged package.
    """
    forms = request.libraries
    if not forms:
        fields = (request.target, request.limits, request.activations, request.float16)
        forms = (LibraryForm("", *fields),)
    recipe = with_overrides(request.quant, request.overrides)
    libraries = tuple(_library(form, recipe) for form in forms)
    specs, shard_bytes = [one.target for one in libraries], request.shard_bytes
    there = package_there(request)
    if there is not None:
        specs += package_targets(there)
        shard_bytes = shard_bytes or _shard_bytes(there)
    return Choices(recipe, libraries, _splitting(specs, shard_bytes), shard_bytes)


def _library(form: LibraryForm, recipe: Recipe) -> ChosenLibrary:
    target = target_spec(form.target, form.limits)
    float16 = form.float16 if recipe.has_float16 else NATIVE
    said = float16 if recipe.has_float16 else None
    if float16 == WORDS:
        recipe = recipe.computed_in("float32")
    target = replace(target, float16=float16)
    target = replace(target, activations=_activations(form.activations, target, recipe))
    name = form.name or form_name(target.name, target.limits, target.activations, said)
    return ChosenLibrary(name, target, recipe, said)


def _activations(given: str, target: TargetSpec, recipe: Recipe) -> str:
    """Form of activations: the user's choice, or else the one of the target's limits."""
    wanted = OLD_ACTIVATIONS.get(given, given)
    if wanted not in (AUTO, *ACTIVATIONS):
        raise UsageError(
            f"unknown activations `{wanted}`",
            hint=f"known: {AUTO}, {', '.join(ACTIVATIONS)}",
        )
    if wanted == INT8 and not recipe.takes_int8:
        others = [other.name for other in RECIPES.values() if other.takes_int8]
        raise UsageError(
            f"--activations int8: recipe `{recipe.name}` stores no integer weights for them",
            hint=f"choose --quant {', '.join(others)}, or --activations float",
        )
    if wanted not in (AUTO, *target.activation_forms):
        raise UsageError(
            f"--activations {wanted}: target `{target.name}` has no such kernels",
            hint=f"it has: {', '.join(target.activation_forms)}",
        )
    if wanted == AUTO:
        return target.activations if recipe.takes_int8 else FLOAT
    return wanted


def sizes_of(request: CompileRequest, config: Gemma4Config) -> Sizes:
    """The sizes that are asked for, or usual ones that the model takes; UsageError for others."""
    limit = config.max_position_embeddings
    if config.embedding is not None:
        return _encoder_sizes(request, config)
    context = _size(
        "--context", request.context_length, DEFAULT_CONTEXT_LENGTH, limit, " for this model"
    )
    chunk = _size("--prefill-chunk", request.prefill_chunk, DEFAULT_PREFILL_CHUNK, context)
    if request.drafter is not None and chunk == 1:
        raise UsageError(
            "--drafter: a prefill chunk of 1 leaves no room for drafts, of which a round has one "
            "fewer at most",
            hint="give a larger --prefill-chunk and --context, or leave --drafter out",
        )
    return Sizes(context, chunk, _image_tokens(request, config))


def _encoder_sizes(request: CompileRequest, config: Gemma4Config) -> Sizes:
    """The most tokens of a text, which are those of a call: a text is never cut."""
    most = min(config.max_position_embeddings, MOST_TEXT_TOKENS)
    usual = min(DEFAULT_TEXT_TOKENS, most)
    context = _size("--context", request.context_length, usual, most, " for this model")
    if request.prefill_chunk not in (None, context):
        raise UsageError(
            f"--prefill-chunk {request.prefill_chunk}: an encoder reads a text in one call, of "
            f"up to --context tokens, which are {context}",
            hint="leave it out, and give --context",
        )
    if request.drafter is not None:
        raise UsageError("--drafter: an encoder makes no tokens to draft", hint="leave it out")
    return Sizes(context, context, _image_tokens(request, config))


def _size(option: str, given: int | None, usual: int, most: int, whose: str = "") -> int:
    usual = min(usual, most)
    size = usual if given is None else given
    if not 1 <= size <= most:
        raise UsageError(
            f"{option}: expected 1 to {most}{whose}, found {size}", hint=f"leave it out for {usual}"
        )
    return size


def _image_tokens(request: CompileRequest, config: Gemma4Config) -> int:
    """Most rows of a picture."""
    tokens, shape = request.image_tokens, request.image_shape
    check_image_tokens(tokens)
    parse_image_shape(shape)
    if config.vision is None and (tokens is not None or shape != WIDE):
        option = "--image-tokens" if tokens is not None else "--image-shape"
        raise UsageError(
            f"{option}: this package takes no pictures",
            hint="leave it out, or compile a model that has them with --modalities text,image",
        )
    return DEFAULT_BUDGET if tokens is None else tokens


def package_there(request: CompileRequest) -> Provenance | None:
    """The package that a partial build goes on with."""
    path = request.output / abi.PROVENANCE_FILE
    if request.only is None or request.force or not path.is_file():
        return None
    return Provenance.from_json(read_artifact(path))


def _shard_bytes(provenance: Provenance) -> int | None:
    said = provenance.build.get(SHARD_SIZE)
    return said if type(said) is int else None


def _splitting(specs: Sequence[TargetSpec], shard_bytes: int | None) -> TargetSpec:
    """The target whose bindings split large tensors; by shards as well, for one holds a tensor."""
    target = strictest(specs)
    if shard_bytes is None:
        return target
    most = min(target.max_binding_bytes or shard_bytes, shard_bytes)
    return replace(target, max_binding_bytes=most)


def package_splits(provenance: Provenance) -> TargetSpec:
    """The target whose bindings split the tensors of a package; errors as `package_targets`."""
    return _splitting(package_targets(provenance), _shard_bytes(provenance))


def package_targets(provenance: Provenance) -> list[TargetSpec]:
    """Targets of a package's libraries; of one without a library, the target of its build.

    ArtifactError names a field that is none of this program's.
    """
    build = provenance.build
    named = [(one.target, one.limits) for one in provenance.libraries]
    specs = []
    for target, limits in named or [(str(build.get("target")), str(build.get("limits")))]:
        found = TARGETS.get(target)
        if found is None or limits not in found.limits:
            field = "target" if found is None else "limits"
            raise ArtifactError(
                f"`{abi.PROVENANCE_FILE}`: field `{field}` is damaged",
                hint="compile the package again",
            )
        specs.append(found.limits[limits])
    return specs
