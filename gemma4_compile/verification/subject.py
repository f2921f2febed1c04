"""A package that is to be verified, the checkpoint it was made from, and its twin with probes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.nonfinite import finite_reader
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.compile.compilation import config_digest
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import package_splits
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.media.settings import media_settings
from gemma4_compile.media.sizes import WIDE
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.options.verify import AUTO, DEFAULT_STEPS, DEFAULT_TEXT_TOKENS, TEXTS
from gemma4_compile.package import files
from gemma4_compile.package.artifacts import (
    Build,
    ChatConfig,
    Provenance,
    TensorCache,
    read_artifact,
)
from gemma4_compile.package.partial_build import FIT, MODALITIES, NONFINITE, SHARD_SIZE
from gemma4_compile.progress import ByteProgress, Reporter
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import Overrides, with_overrides
from gemma4_compile.runtime.package.choice import without_absent
from gemma4_compile.runtime.package.integrity import ByteCount, Check, check_files
from gemma4_compile.runtime.package.package import check_whole, read_provenance
from gemma4_compile.system.files import point_to
from gemma4_compile.targets.spec import NATIVE
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.adapters import adapters_of, check_adapters
from gemma4_compile.verification.build_fields import check_build, check_fits
from gemma4_compile.verification.named_library import with_main
from gemma4_compile.verification.stored_weights import StoredWeights


@dataclass(frozen=True)
class VerifyRequest:
    """Package and reference to compare.

    Attributes
    ----------
    reference : the checkpoint, as gemma4-compile takes it
    steps : tokens decoded in each of the two runs
    node_modules : folder of the Node packages that run WebGPU
    drafter : the package's drafter; None for the one that its provenance names
    texts : names of the texts by form
    text_tokens : most tokens of one of them
    device : of torch, or `auto`
    adapters : those of the package; none for those that its provenance names
    library : name of one of the package's libraries; None for the main one
    """

    package: Path
    reference: str
    revision: str | None = None
    steps: int = DEFAULT_STEPS
    text: Path | None = None
    node_modules: Path | None = None
    drafter: str | None = None
    texts: tuple[str, ...] = TEXTS
    text_tokens: int = DEFAULT_TEXT_TOKENS
    device: str = AUTO
    adapters: tuple[str, ...] = ()
    library: str | None = None


@dataclass(frozen=True)
class Subject:
    """A package, and the checkpoint it was made from.

    Attributes
    ----------
    provenance : with the library that is verified as the main one
    """

    provenance: Provenance
    context: int
    plan: tuple[StoredParameter, ...]
    stored: StoredWeights
    checkpoint: Checkpoint
    config: Gemma4Config
    read: RowReader

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the checkpoint's tensors."""
        return {source.name: source.shape for s in self.plan for source in s.parameter.sources}

    @property
    def compiled(self) -> JsonObject:
        """The library, and what it was compiled for."""
        build = self.provenance.build
        return {
            "library": self.provenance.libraries[0].name,
            "library_sha256": self.provenance.files[str(self.provenance.library)][1],
            "target": build["target"],
            "recipe": build["recipe"],
            "activations": build["activations"],
        }

    @property
    def sizes(self) -> JsonObject:
        """How many weights there are, and what they take."""
        weights = sum(prod(one.parameter.shape) for one in self.plan)
        stored = sum(tensor.nbytes for one in self.plan for tensor in one.tensors)
        return {
            "weights": weights,
            "weights_bytes": stored,
            "bits_per_weight": 8 * stored / weights,
        }


def provenance_of(package: Path, library: str | None = None) -> Provenance:
    """Provenance of a package, with the named library as its main one.

    ArtifactError names a field of the build that is damaged; UsageError as `with_main`.
    """
    provenance = read_provenance(package)
    check_build(provenance.build)
    chosen = with_main(package, provenance, library)
    check_build(chosen.build)
    return chosen


@contextmanager
def reference_of(request: VerifyRequest, build: Build) -> Iterator[ModelSource]:
    """The checkpoint, with what the package takes; CheckpointError if it has no such input."""
    modalities = modalities_of(build)
    with ExitStack() as stack:
        try:
            source = stack.enter_context(
                open_source(
                    request.reference,
                    request.revision,
                    weights=True,
                    modalities=modalities,
                    adapters=adapters_of(request.package, request.adapters, build),
                )
            )
        except ConfigError as error:
            if modalities == TEXT_ONLY:
                raise
            taken = ", ".join(sorted(modalities))
            raise CheckpointError(
                f"`{request.package}` takes {taken}, and `{request.reference}` cannot be read as "
                f"that: {error}",
                hint="give the checkpoint that the package was made from",
            ) from error
        check_adapters(request.package, build, source.origin)
        yield source


def open_subject(
    request: VerifyRequest, checkpoint: Checkpoint, config: Gemma4Config, reporter: Reporter
) -> Subject:
    """Read a package and check every file of it by its hash; libraries of others may be missing.

    Raises
    ------
    ArtifactError
        If the package is a partial build, or damaged.
    CheckpointError
        If it was made from another config, or the checkpoint is damaged.
    """
    provenance = provenance_of(request.package, request.library)
    build = provenance.build
    check_whole(request.package, provenance)
    if build["source"].get("config") != config_digest(config):
        raise CheckpointError(
            f"`{request.package}` was compiled from another config.json than `{request.reference}`",
            hint="give the checkpoint that the package was made from",
        )
    here = without_absent(request.package, provenance)
    total = sum(nbytes for nbytes, _ in here.files.values())
    with reporter.progress(f"checking {request.package}", total) as advance:
        check_files(request.package, here, Check.ALWAYS, _steps(advance))
    limits = package_splits(provenance)
    recipe = with_overrides(build["recipe"], overrides_of(build))
    plan = storage_plan(model_parameters(config, COMPONENTS), recipe, limits.max_binding_bytes)
    cache = TensorCache.from_json(read_artifact(request.package / abi.TENSOR_CACHE_FILE))
    chat = ChatConfig.from_json(read_artifact(request.package / abi.CHAT_CONFIG_FILE))
    check_fits(build, config, chat)
    matched = match(checkpoint.tensors, config)
    read = row_reader(matched)
    if build.get(NONFINITE) is not None:  # as --allow-nonfinite reads it; the report notes it
        read = finite_reader(read)
    return Subject(
        provenance=provenance,
        context=chat.context_window_size,
        plan=plan,
        stored=StoredWeights(request.package, cache, plan),
        checkpoint=checkpoint,
        config=config,
        read=read,
    )


def _steps(advance: ByteProgress) -> ByteCount:
    """Report to a counter of new bytes, from reports of all that is done."""
    before = 0

    def progress(done: int, total: int) -> None:
        nonlocal before
        if not before:
            advance(0)  # nothing was done by an earlier run
        advance(done - before)
        before = done

    return progress


def overrides_of(build: Build) -> Overrides:
    """Schemes of --recipe that a package was made with."""
    return tuple((pattern, scheme) for pattern, scheme in build.get("overrides", ()))


def modalities_of(build: Build) -> frozenset[Modality]:
    """Modalities of a package; those of earlier versions take text."""
    return frozenset(map(Modality, build.get(MODALITIES, ("text",))))


def request_of(
    build: Build, model: str, output: Path, revision: str | None = None
) -> CompileRequest:
    """The request of a package's weights and main library, without its drafter.

    Every option that changes bytes is restored here; a test goes over them.
    """
    image = media_settings(build).image
    return CompileRequest(
        model=model,
        target=build["target"],
        quant=build["recipe"],
        overrides=overrides_of(build),
        output=output,
        limits=build["limits"],
        context_length=build["context_length"],
        prefill_chunk=build["prefill_chunk"],
        revision=revision,
        activations=build["activations"],
        float16=build.get("float16", NATIVE),
        modalities=modalities_of(build),
        image_tokens=None if image is None else image.max_budget,
        image_shape=WIDE if image is None else image.client_shape,
        allow_nonfinite=build.get(NONFINITE) is not None,
        shard_bytes=build.get(SHARD_SIZE),
        fitted=build.get(FIT),
    )


def _overrides_of_model(opened: Subject) -> Overrides:
    """Those that name parameters of the model; a probe has no drafter."""
    names, given = (
        [one.parameter.name for one in opened.plan],
        overrides_of(opened.provenance.build),
    )
    return tuple(one for one in given if any(fnmatchcase(name, one[0]) for name in names))


def make_probe(request: VerifyRequest, opened: Subject, folder: Path, reporter: Reporter) -> Path:
    """Make the same package in `folder`, with a library that returns the residual streams, too."""
    provenance = opened.provenance
    build, probe = provenance.build, folder / "probe"
    asked = request_of(build, request.reference, probe, request.revision)
    adapters = adapters_of(request.package, request.adapters, build)
    # Its weights are the package's, which are split for the strictest of all libraries.
    splits = package_splits(provenance).max_binding_bytes
    asked = replace(asked, adapters=adapters, shard_bytes=splits)
    overrides = _overrides_of_model(opened)
    compile_model(replace(asked, overrides=overrides, only="library", probe=True), reporter)
    made = Provenance.from_json(read_artifact(probe / abi.PROVENANCE_FILE))
    # Its library and what goes with one are there already.
    of_library = {*made.files, *(one.file for one in provenance.libraries)}
    kept = [name for name in provenance.files if name not in of_library]
    for name in kept:
        point_to((request.package / name).resolve(), probe / name)
    listed = {**{name: provenance.files[name] for name in kept}, **made.files}
    (own,), name = made.libraries, provenance.libraries[0].name
    twin = Provenance(made.library, build, listed, (replace(own, name=name),))
    files.write_json(probe / abi.PROVENANCE_FILE, twin.to_json())
    return probe
