"""The only file that knows the order of the stages: from a model's name to a package."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile import abi
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
from gemma4_compile.checkpoint.sources import SHIPPED, ModelSource, open_source
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.compile.build import LibraryReport
from gemma4_compile.compile.chat_config import Conversation, make_conversation, make_encoder_config
from gemma4_compile.compile.compilation import (
    Compilation,
    LibraryPlan,
    fingerprint,
    matched_tensors,
    provenance_of,
    with_kept_calibration,
    with_origins,
)
from gemma4_compile.compile.dump import check_dump
from gemma4_compile.compile.library_build import build_libraries
from gemma4_compile.compile.library_set import check_plans, library_plans
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.planned_source import open_for_plan
from gemma4_compile.compile.released_phones import as_phone
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import Choices, choose, sizes_of
from gemma4_compile.compile.usual_recipe import with_usual_recipe
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.package import files, interface
from gemma4_compile.package.libraries import LibraryRecord, library_file, together
from gemma4_compile.package.output_directory import (
    PROGRESS_FILE,
    check_free,
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
from gemma4_compile.package.pieces import Listed
from gemma4_compile.package.shards import SHARD_BYTES, check_shard_size, write_weights
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.recipe_file import check_overrides
from gemma4_compile.system.limits import peak_memory_bytes
from gemma4_compile.targets import check_tools, library_licences
from gemma4_compile.targets.libraries import wider_libraries

_log = logging.getLogger(__name__)

Calibrate = Callable[[Compilation, Reporter], Compilation]
"""Gives a compilation other values for some of its tensors."""

PLANNED_CONTEXTS = (4096, 32_768, 131_072)


@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    output: Path
    package_bytes: int
    libraries: tuple[tuple[str, int], ...]  # files and their bytes, the main one first
    report: LibraryReport | None
    seconds: float
    peak_memory_bytes: int
    nonfinite: Counts | None = None  # weights that were not finite, where they are allowed
    whole: bool = True  # library and weights
    converses: bool = True  # the package has a chat template
    recipe: str | None = None  # what was chosen, and why, where none was given


def plan_model(
    request: CompileRequest, known_as: str | None = None
) -> tuple[tuple[LibraryPlan, ...], Mapping[str, object], CompileRequest]:
    """Plan what would be built; downloads nothing but the config.

    Parameters
    ----------
    known_as : the model that is meant, where the request names what has its config alone

    Returns
    -------
    tuple
        Plans, that of the main library first; where the model is from; the request with its recipe.

    Raises
    ------
    Gemma4CompileError
        As `compile_model` does, but for errors of the plan itself: see `BuildPlan.check`.
    """
    chosen = choose(request)  # what is wrong with the options comes first
    with open_for_plan(request) as source:
        config = source.config
        sizes = sizes_of(request, config)
        table = model_parameters(config, ALL_COMPONENTS)
        own = with_own_schemes(with_usual_recipe(request, source, known_as), source, table)
        if own is not request:
            chosen = choose(own)
        check_overrides(chosen.recipe, table)
        usual = [length for length in PLANNED_CONTEXTS if length <= config.max_position_embeddings]
        return library_plans(chosen, sizes, config, usual), source.origin, own


def _write_weights(
    build: Compilation,
    checkpoint: Checkpoint,
    conversation: Conversation,
    directory: Path,
    reporter: Reporter,
) -> tuple[Mapping[str, Listed], Counts | None]:
    """Write everything but the library; returns the hashes of the shards, and what became 0."""
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
            build.shard_bytes or SHARD_BYTES,
            {} if build.calibration is None else build.calibration.stored,
        )
    check_unchanged(matched.values())
    manifest = interface.manifest_json(
        build.parameter_schema_id, build.media, embeds=build.embedding is not None
    )
    files.write_json(directory / abi.TENSOR_CACHE_FILE, written.cache.to_json())
    if written.drafter is not None:
        files.write_json(directory / abi.DRAFTER_CACHE_FILE, written.drafter.to_json())
    files.write_json(directory / abi.MANIFEST_FILE, manifest)
    rewritten = conversation.files.rewritten()
    if conversation.tokenizer is not None:
        rewritten[TOKENIZER_FILE] = conversation.tokenizer
    for file in checkpoint.tokenizer_files():
        if file.name not in rewritten:
            copy = files.copy_json if file.name == TOKENIZER_FILE else files.copy_file
            copy(file, directory)
    for name, content in rewritten.items():
        if content is not None:
            files.write_json(directory / name, content, compact=name == TOKENIZER_FILE)
    files.write_json(directory / abi.CHAT_CONFIG_FILE, conversation.config)
    return written.hashes, nonfinite


def _records(build: Compilation, kept: Kept, *, alone: bool) -> tuple[LibraryRecord, ...]:
    """The libraries that are made; the first is the main one where no kept one is."""
    return tuple(
        one.record(
            library_file(
                one.name, one.target.library_suffix, main=not index and kept.library is None
            ),
            alone=alone,
        )
        for index, one in enumerate(build.libraries)
    )


def _write_licences(directory: Path, records: Sequence[LibraryRecord]) -> None:
    for file, text in library_licences({one.file: one.target for one in records}).items():
        files.write_text(directory / file, text)


def _directories(request: CompileRequest) -> list[Path]:
    """Directories of the checkpoints, adapters and the tokenizer that have one: not what ships."""
    names = (request.model, request.drafter, request.tokenizer, *request.adapters)
    return [local_path(name) for name in names if name is not None and name not in SHIPPED]


def _planned(
    request: CompileRequest,
    chosen: Choices,
    source: ModelSource,
    drafter: DrafterSource | None,
    table: Sequence[Parameter],
) -> Compilation:
    """What is compiled, in all its sizes; an error if they do not fit together, or the device."""
    sizes = sizes_of(request, source.config)
    check_overrides(chosen.recipe, table)
    libraries = library_plans(chosen, sizes, source.config)
    check_plans(libraries)
    main = libraries[0]
    for one in libraries:
        _log_plan(one)
    plan = storage_plan(table, chosen.recipe, main.numbers.split_bytes)
    suppressed = suppressed_tokens(source.generation_config, source.config.vocab_size)
    return Compilation(
        source,
        chosen.recipe,
        main.target,
        sizes.context_length,
        sizes.prefill_chunk,
        plan,
        suppressed,
        main.numbers,
        allow_nonfinite=request.allow_nonfinite,
        image_shape=request.image_shape,
        libraries=libraries,
        shard_bytes=chosen.shard_bytes,
        drafter=drafter,
        fitted=request.fitted,
    )


def _log_plan(library: LibraryPlan) -> None:
    """Log what a library will need of its device."""
    numbers = library.numbers
    _log.info(
        "library `%s`: %d bytes of weights, %d of keys and values; %d in all, %d in one binding",
        library.name,
        numbers.recipe.weights_bytes,
        numbers.kv_bytes,
        numbers.device_memory_bytes,
        numbers.largest_binding_bytes,
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
    chosen = choose(request)  # what is wrong with the options comes first
    check_place(request.output, _directories(request))
    check_output(request.output, force=request.force)
    if request.dump_ir is not None:
        check_dump(request.dump_ir.beside(request.output))
    weights = request.only != "library"
    if request.only != "weights":
        check_tools(one.target.name for one in chosen.libraries)
    reporter.stage(f"opening {request.model}")
    with (
        open_source(
            request.model,
            request.revision,
            weights=weights,
            modalities=request.modalities,
            tokenizer=Tokenizer(weights, request.tokenizer),
            adapters=request.adapters,
        ) as source,
        open_drafter(request.drafter, source.config, weights=weights) as drafter,
    ):
        asked, request = request, with_usual_recipe(request, source)
        source = as_phone(request, source)
        source = replace(source, config=with_drafter(source.config, drafter))
        table = model_parameters(source.config, ALL_COMPONENTS)
        request = with_own_schemes(request, source, table)
        if request is not asked:
            chosen = choose(request)
        if request.usual_text is not None:
            reporter.stage(f"recipe {request.usual_text}")
        build = _planned(request, chosen, source, drafter, table)
        checkpoint = source.checkpoint
        conversation: Conversation | None = None
        if checkpoint is not None:  # what can be known to fail fails before the long stages
            by_dtype = {one.recipe.activation_dtype: one.recipe for one in build.libraries}
            read_norms = row_reader(matched_tensors(build))
            wider = wider_libraries({one.target.name for one in build.libraries})
            for recipe in by_dtype.values():
                check_norms(table, recipe, read_norms, wider)
            if drafter is not None and drafter.checkpoint is not None:
                check_tokenizer(drafter.checkpoint, checkpoint, source.config.vocab_size)
            if build.embedding is None:
                conversation = make_conversation(build, checkpoint, reporter)
            else:
                is_asked = request.context_length is not None
                conversation = make_encoder_config(
                    build, checkpoint, reporter, is_length_asked=is_asked
                )
            if build.shard_bytes is not None:
                stored = (tensor for one in build.storage for tensor in one.tensors)
                check_shard_size(stored, build.shard_bytes)
        inputs = digest_files(build.input_files, reporter)
        if request.lock is not None:
            inputs = request.lock.of_then(inputs)
            request.lock.check(inputs, whole=weights)
            build = with_origins(build, request.lock)
        if calibrate is not None and weights:
            build = calibrate(build, reporter)
        provenance = provenance_of(build)
        kept, known = Kept(), dict[str, Listed]()
        if request.only is not None and not request.force:
            kept = rest_of_package(
                request.output,
                request.only,
                provenance,
                [one.name for one in build.libraries],
                beside=bool(request.libraries),
            )
            known = files.check_kept(request.output, kept.sha256)
            build = with_kept_calibration(build, kept.calibration)
            provenance = provenance_of(build)
        records, report, nonfinite = kept.libraries, None, kept.nonfinite
        made = _records(build, kept, alone=request.only is not None)
        if request.only != "weights" and not request.force:
            check_free(request.output, [one.file for one in made])
        with output_directory(request.output, force=request.force, weights=weights) as directory:
            if request.only != "weights":
                report = build_libraries(build, made, directory, request, reporter)
                main_is_kept = kept.library is not None
                records = together(kept.libraries, made, main_is_kept=main_is_kept)
                _write_licences(directory, records)
            if checkpoint is not None and conversation is not None:
                hashes, nonfinite = _write_weights(
                    build, checkpoint, conversation, directory, reporter
                )
                known |= hashes
            files.take_over(request.output, kept.files, directory)
            converses = read_chat_template(directory) is not None  # weights may have been kept
            provenance[NONFINITE] = provenance[NONFINITE] if nonfinite is None else nonfinite
            noted = kept.conversation if conversation is None else conversation.provenance()
            provenance |= {CONVERSATION: noted} if noted else {}
            provenance = kept.with_rest(provenance) | lock_of(kept, request.only, inputs)
            library = records[0].file if records else None
            package = files.finish(directory, library, provenance, known, records)
    return Summary(
        output=request.output,
        package_bytes=sum(nbytes for nbytes, _ in package.files.values()),
        libraries=tuple((one.file, package.files[one.file][0]) for one in records),
        report=report,
        seconds=time.monotonic() - begin,
        peak_memory_bytes=peak_memory_bytes() or 0,
        recipe=request.usual_text,
        nonfinite=provenance[NONFINITE],
        converses=converses,
        whole=library is not None and abi.TENSOR_CACHE_FILE in package.files,
    )
