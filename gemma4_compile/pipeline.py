"""The only file that knows the order of the stages: from a model's name to a package."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile import abi, options
from gemma4_compile.build import LibraryOptions, LibraryReport, build_executable
from gemma4_compile.chat_config import Conversation, make_conversation
from gemma4_compile.checkpoint.chat_files import read_chat_template
from gemma4_compile.checkpoint.drafter import (
    DrafterSource,
    check_tokenizer,
    open_drafter,
    with_drafter,
)
from gemma4_compile.checkpoint.files import TOKENIZER_FILE
from gemma4_compile.checkpoint.float16_range import check_norms
from gemma4_compile.checkpoint.gguf.opening import Tokenizer
from gemma4_compile.checkpoint.input_files import digest_files
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.match import Checkpoint, row_reader
from gemma4_compile.checkpoint.nonfinite import Counts, open_reader
from gemma4_compile.checkpoint.safetensors_file import check_unchanged
from gemma4_compile.checkpoint.sources import TINY, ModelSource, open_source
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.compilation import (
    MODEL_TYPE,
    Compilation,
    fingerprint,
    matched_tensors,
    provenance_of,
    with_kept_calibration,
    with_origins,
)
from gemma4_compile.dump import Dump
from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import client_blocks
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.package import files, interface
from gemma4_compile.package.digest import package_digest
from gemma4_compile.package.output_directory import (
    PROGRESS_FILE,
    check_output,
    check_place,
    output_directory,
)
from gemma4_compile.package.partial_build import (
    CONVERSATION,
    NONFINITE,
    Kept,
    lock_of,
    rest_of_package,
)
from gemma4_compile.package.shards import write_weights
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import Recipe, storage_plan
from gemma4_compile.quantization.recipe_file import check_overrides, with_overrides
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.reports.plan import BuildPlan, make_plan
from gemma4_compile.request import AUTO, CompileRequest, image_tokens
from gemma4_compile.system.limits import peak_memory_bytes
from gemma4_compile.targets import TargetSpec, library_licences, link, target_spec
from gemma4_compile.targets.spec import ACTIVATIONS, FLOAT, INT8, WORDS
from gemma4_compile.types import JsonObject

Calibrate = Callable[[Compilation, Reporter], Compilation]
"""Gives a compilation other values for some of its tensors."""

PLANNED_CONTEXTS = (4096, 32_768, 131_072)


@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    output: Path
    package_bytes: int
    library_bytes: int | None
    report: LibraryReport | None
    seconds: float
    peak_memory_bytes: int
    nonfinite: Counts | None = None  # weights that were not finite, where they are allowed
    whole: bool = True  # library and weights
    converses: bool = True  # the package has a chat template


def target_and_recipe(request: CompileRequest) -> tuple[TargetSpec, Recipe]:
    """Return the target, with its activations, and the recipe; UsageError for unknown ones."""
    target = replace(target_spec(request.target, request.limits), float16=request.float16)
    recipe = with_overrides(request.quant, request.overrides)
    if target.float16 == WORDS:
        recipe = recipe.computed_in("float32")
    return replace(target, activations=_activations(request, target, recipe)), recipe


def _activations(request: CompileRequest, target: TargetSpec, recipe: Recipe) -> str:
    """Form of activations: the user's choice, or else the one of the target's limits."""
    wanted = options.OLD_ACTIVATIONS.get(request.activations, request.activations)
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


def lengths(request: CompileRequest, config: Gemma4Config) -> tuple[int, int]:
    """Return context length and prefill chunk: the user's, or the defaults capped by the model."""
    limit = config.max_position_embeddings
    context = request.context_length
    if context is None:
        context = min(options.DEFAULT_CONTEXT_LENGTH, limit)
    elif not 1 <= context <= limit:
        raise UsageError(
            f"--context: expected 1 to {limit} for this model, found {context}",
            hint=f"leave it out for {min(options.DEFAULT_CONTEXT_LENGTH, limit)}",
        )
    chunk = request.prefill_chunk
    if chunk is None:
        chunk = min(options.DEFAULT_PREFILL_CHUNK, context)
    elif not 1 <= chunk <= context:
        raise UsageError(
            f"--prefill-chunk: expected 1 to {context}, found {chunk}",
            hint=f"leave it out for {min(options.DEFAULT_PREFILL_CHUNK, context)}",
        )
    if request.drafter is not None and chunk == 1:
        raise UsageError(
            "--drafter: a prefill chunk of 1 leaves no room for guesses, of which a round has one "
            "fewer at most",
            hint="give a larger --prefill-chunk and --context, or leave --drafter out",
        )
    return context, chunk


def plan_model(request: CompileRequest) -> tuple[BuildPlan, Mapping[str, object]]:
    """Plan what would be built, and where the model is from; downloads nothing but the config.

    Raises
    ------
    Gemma4CompileError
        As `compile_model` does, but for errors of the plan itself: see `BuildPlan.check`.
    """
    target, recipe = target_and_recipe(request)
    model, revision = request.model, request.revision
    modalities = request.modalities
    with (
        open_source(
            *(model, revision),
            weights=False,
            generation_config=False,
            modalities=modalities,
            adapters=request.adapters,
        ) as source,
        open_drafter(request.drafter, source.config, weights=False) as drafter,
    ):
        config = with_drafter(source.config, drafter)
        context, chunk = lengths(request, config)
        check_overrides(recipe, model_parameters(config, ALL_COMPONENTS))
        usual = [length for length in PLANNED_CONTEXTS if length <= config.max_position_embeddings]
        tokens = image_tokens(request, config)
        plan = make_plan(config, recipe, target, context, chunk, usual, image_tokens=tokens)
        return plan, source.origin


def _metadata(build: Compilation) -> JsonObject:
    """The library's `_metadata`."""
    plan = build.numbers
    return interface.library_metadata(
        model_type=MODEL_TYPE,
        quantization=build.quantization,
        context_length=build.context_length,
        prefill_chunk=build.prefill_chunk,
        tensors=build.tensors,
        drafter=[tensor for stored in build.drafter_storage for tensor in stored.tensors],
        required_features=plan.features,
        largest_binding_bytes=plan.largest_binding_bytes,
        device_memory_bytes=plan.device_memory_bytes,
        media=build.media,
    )


def _build_library(
    build: Compilation, directory: Path, request: CompileRequest, reporter: Reporter
) -> tuple[str, LibraryReport]:
    reporter.stage(f"compiling the model library for {build.target.name}")
    dump = Dump(request.dump_ir) if request.dump_ir else None
    options = LibraryOptions(
        context_length=build.context_length,
        prefill_chunk=build.prefill_chunk,
        metadata=_metadata(build),
        suppressed=build.suppressed,
        dump=dump.phase if dump else None,
        dump_kernel=dump.kernel if dump else None,
        probe=request.probe,
        image_rows=build.numbers.image_tokens,
        client_blocks=client_blocks(build.numbers.image_tokens, build.image_shape),
        package=package_digest(provenance_of(build), build.source.checkpoint),
    )
    executable, report = build_executable(
        build.config, build.storage, build.recipe, build.target, options
    )
    name = abi.LIBRARY_STEM + build.target.library_suffix
    link(executable, directory / name, build.target, reporter.stage)
    for file, text in library_licences(build.target, name).items():
        files.write_text(directory / file, text)
    return name, report


def _write_weights(
    build: Compilation,
    checkpoint: Checkpoint,
    conversation: Conversation,
    directory: Path,
    reporter: Reporter,
) -> tuple[Mapping[str, str], Counts | None]:
    """Write everything but the library; returns the sha256 of the shards, and what became 0."""
    matched = matched_tensors(build)
    read_rows, nonfinite = open_reader(
        matched,
        reporter,
        allow_nonfinite=build.allow_nonfinite,
        originals=matched_tensors(replace(build, calibration=None)),
    )
    if (directory / PROGRESS_FILE).exists():
        reporter.stage("checking the weights that an earlier run finished")
    total = sum(tensor.nbytes for stored in build.storage for tensor in stored.tensors)
    with reporter.progress("converting weights", total) as advance:
        written = write_weights(
            directory,
            build.own_storage,
            read_rows,
            fingerprint(build),
            advance,
            build.drafter_storage,
        )
    check_unchanged(matched.values())
    manifest = interface.manifest_json(build.parameter_schema_id, build.media)
    files.write_json(directory / abi.TENSOR_CACHE_FILE, written.cache.to_json())
    if written.drafter is not None:
        files.write_json(directory / abi.DRAFTER_CACHE_FILE, written.drafter.to_json())
    files.write_json(directory / abi.MANIFEST_FILE, manifest)
    rewritten = conversation.files.rewritten()
    if conversation.tokenizer is not None:
        rewritten[TOKENIZER_FILE] = conversation.tokenizer
    for file in checkpoint.tokenizer_files():
        if file.name not in rewritten:
            files.copy_file(file, directory)
    for name, content in rewritten.items():
        if content is not None:
            files.write_json(directory / name, content)
    files.write_json(directory / abi.CHAT_CONFIG_FILE, conversation.config)
    return written.sha256, nonfinite


def _directories(request: CompileRequest) -> list[Path]:
    """Directories of the checkpoints, adapters and the tokenizer that have one: not `tiny`."""
    names = (request.model, request.drafter, request.tokenizer, *request.adapters)
    return [local_path(name) for name in names if name is not None and name != TINY]


def _planned(
    request: CompileRequest,
    source: ModelSource,
    drafter: DrafterSource | None,
    target: TargetSpec,
    recipe: Recipe,
    table: Sequence[Parameter],
) -> Compilation:
    """What is compiled, in all its sizes; an error if they do not fit together, or the device."""
    context, chunk = lengths(request, source.config)
    check_overrides(recipe, table)
    tokens = image_tokens(request, source.config)
    numbers = make_plan(source.config, recipe, target, context, chunk, image_tokens=tokens)
    numbers.check()
    plan = storage_plan(table, recipe, target.max_binding_bytes)
    suppressed = suppressed_tokens(source.generation_config, source.config.vocab_size)
    return Compilation(
        *(source, recipe, target, context, chunk, plan, suppressed, numbers),
        allow_nonfinite=request.allow_nonfinite,
        image_shape=request.image_shape,
        drafter=drafter,
    )


def compile_model(
    request: CompileRequest, reporter: Reporter, calibrate: Calibrate | None = None
) -> Summary:
    """Compile a model into a package.

    Parameters
    ----------
    calibrate : chooses integers of the weights before anything is stored, where they are asked for

    Raises
    ------
    Gemma4CompileError
        Of the class that names whose fault it is; the output directory is then as it was before.
    """
    begin = time.monotonic()
    target, recipe = target_and_recipe(request)
    check_place(request.output, _directories(request))
    check_output(request.output, force=request.force)
    weights = request.only != "library"
    reporter.stage(f"opening {request.model}")
    with (
        open_source(
            *(request.model, request.revision),
            weights=weights,
            modalities=request.modalities,
            tokenizer=Tokenizer(weights, request.tokenizer),
            adapters=request.adapters,
        ) as source,
        open_drafter(request.drafter, source.config, weights=weights) as drafter,
    ):
        source = replace(source, config=with_drafter(source.config, drafter))
        table = model_parameters(source.config, ALL_COMPONENTS)
        build = _planned(request, source, drafter, target, recipe, table)
        checkpoint = source.checkpoint
        conversation: Conversation | None = None
        if checkpoint is not None:  # what can be known to fail fails before the long stages
            check_norms(table, recipe, row_reader(matched_tensors(build)))
            if drafter is not None and drafter.checkpoint is not None:
                check_tokenizer(drafter.checkpoint, checkpoint, source.config.vocab_size)
            conversation = make_conversation(build, checkpoint, reporter)
        inputs = digest_files(build.input_files, reporter)
        if request.lock is not None:
            request.lock.check(inputs, whole=weights)
            build = with_origins(build, request.lock)
        if calibrate is not None and weights:
            build = calibrate(build, reporter)
        provenance = provenance_of(build)
        kept = Kept()
        if request.only is not None and not request.force:
            kept = rest_of_package(request.output, request.only, provenance)
            build = with_kept_calibration(build, kept.calibration)
            provenance = provenance_of(build)
        library, report, nonfinite = kept.library, None, kept.nonfinite
        sha256: Mapping[str, str] = {}
        with output_directory(request.output, force=request.force, weights=weights) as directory:
            if request.only != "weights":
                library, report = _build_library(build, directory, request, reporter)
            if checkpoint is not None and conversation is not None:
                sha256, nonfinite = _write_weights(
                    build, checkpoint, conversation, directory, reporter
                )
            files.take_over(request.output, kept.files, directory)
            converses = read_chat_template(directory) is not None  # weights may have been kept
            provenance[NONFINITE] = provenance[NONFINITE] if nonfinite is None else nonfinite
            noted = kept.conversation if conversation is None else conversation.provenance()
            provenance |= {CONVERSATION: noted} if noted else {}
            provenance |= lock_of(kept, request.only, inputs)
            package = files.finish(directory, library, provenance, sha256)
    return Summary(
        output=request.output,
        package_bytes=sum(nbytes for nbytes, _ in package.files.values()),
        library_bytes=package.files[library][0] if library else None,
        report=report,
        seconds=time.monotonic() - begin,
        peak_memory_bytes=peak_memory_bytes() or 0,
        nonfinite=provenance[NONFINITE],
        converses=converses,
        whole=library is not None and abi.TENSOR_CACHE_FILE in package.files,
    )
