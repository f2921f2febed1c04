"""A compilation: what library and weights of a package share, and its provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

from gemma4_compile import __version__
from gemma4_compile.checkpoint.drafter import DrafterSource, match_drafter
from gemma4_compile.checkpoint.input_files import Files, Lock
from gemma4_compile.checkpoint.match import match
from gemma4_compile.checkpoint.quantised.read import quantization_of
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.checkpoint.sources import SHIPPED, ModelSource
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.media.settings import MEDIA, MediaSettings
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.parameters import STEM
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.package import artifacts, interface
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.package.media import settings_of
from gemma4_compile.package.partial_build import (
    CALIBRATION,
    FIT,
    MEMORY,
    MODALITIES,
    NONFINITE,
    SHARD_SIZE,
)
from gemma4_compile.planning.memory_parts import memory_parts
from gemma4_compile.planning.plan import BuildPlan
from gemma4_compile.quantization.convert import StoredReaders
from gemma4_compile.quantization.recipe import Recipe, StoredParameter
from gemma4_compile.quantization.scheme import StoredTensor
from gemma4_compile.targets import TargetSpec
from gemma4_compile.targets.spec import WORDS
from gemma4_compile.types import JsonObject

MODEL_TYPE = "gemma4"
ENCODER_TYPE = "embedding_gemma2"
_SOME_MODELS_ROLES = (Role.LM_HEAD, Role.DRAFTER_HEAD)
# What takes part in a compilation, for provenance; jinja2 is here for the chat that follows it.
PACKAGES = (
    *("apache-tvm", "apache-tvm-ffi", "huggingface_hub", "jinja2", "numpy"),
    *("safetensors", "tokenizers", "tqdm", "ziglang"),
)
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "": (".py",),
    **dict.fromkeys(("model_spec", "quantization", "targets"), (".py", ".json", ".cc", ".h")),
}
"""Suffixes of what decides over bytes, by package."""


@dataclass(frozen=True)
class Calibration:
    """Tensors whose values were chosen for a model as a whole, in place of the checkpoint's.

    Attributes
    ----------
    entry : in provenance
    tensors : by their names in the checkpoint; their values lie on the grids of their schemes
    stored : the same as their schemes store them
    """

    entry: JsonObject
    tensors: Mapping[str, TensorInfo]
    stored: StoredReaders


@dataclass(frozen=True)
class LibraryPlan:
    """One library of a package: its name there, and what it is compiled for."""

    name: str
    target: TargetSpec
    recipe: Recipe
    numbers: BuildPlan

    def record(self, file: str, *, alone: bool) -> LibraryRecord:
        """Its entry in provenance."""
        return LibraryRecord(
            file=file,
            name=self.name,
            target=self.target.name,
            device=self.target.device,
            limits=self.target.limits,
            activations=self.target.activations,
            float16=self.target.float16 if self.recipe.has_float16 else None,
            requirements=self.numbers.provenance(),
            alone=alone,
        )


@dataclass(frozen=True)
class Compilation:
    """Everything that libraries and weights of a package share.

    Attributes
    ----------
    recipe, target, numbers : of the main library, or of the one that is compiled
    libraries : those that are made, the main one first
    fitted : what a budget has chosen, as provenance has it
    """

    source: ModelSource
    recipe: Recipe
    target: TargetSpec
    context_length: int
    prefill_chunk: int
    storage: tuple[StoredParameter, ...]
    suppressed: tuple[int, ...]
    numbers: BuildPlan
    allow_nonfinite: bool
    image_shape: str
    libraries: tuple[LibraryPlan, ...]
    drafter: DrafterSource | None = None
    calibration: Calibration | None = None
    shard_bytes: int | None = None
    fitted: JsonObject | None = None

    def of(self, library: LibraryPlan) -> Compilation:
        """The compilation of one of its libraries."""
        return replace(self, recipe=library.recipe, target=library.target, numbers=library.numbers)

    @property
    def serves_browsers(self) -> bool:
        """Return whether one of its libraries is for browsers."""
        return any(is_of_pages(one.target.device) for one in self.libraries)

    @property
    def config(self) -> Gemma4Config:
        """The model's config, with its drafter's."""
        return self.source.config

    @property
    def model_type(self) -> str:
        """Of the model, in the package's files."""
        return MODEL_TYPE if self.config.embedding is None else ENCODER_TYPE

    @property
    def embedding(self) -> JsonObject | None:
        """What metadata and provenance say of an encoder; None for a decoder."""
        found = self.config.embedding
        return None if found is None else interface.embedding_entry(found.dim)

    @property
    def media(self) -> MediaSettings:
        """Settings of pictures and sounds."""
        return settings_of(self.config, self.numbers.image_tokens, self.image_shape)

    @property
    def quantization(self) -> str:
        """Name of the scheme of most matrices."""
        return self.recipe.schemes[Role.LINEAR].name

    @property
    def own_storage(self) -> list[StoredParameter]:
        """The stored parameters of the model itself."""
        return [one for one in self.storage if not one.parameter.name.startswith(STEM)]

    @property
    def drafter_storage(self) -> list[StoredParameter]:
        """The stored parameters of its drafter."""
        return [one for one in self.storage if one.parameter.name.startswith(STEM)]

    @property
    def input_files(self) -> dict[str, Files]:
        """All that a package is made from, by role: what has digests in provenance."""
        drafter = {} if self.drafter is None else {interface.DRAFTER: self.drafter.files}
        adapters = {f"adapter {i}": one for i, one in enumerate(self.source.adapters, 1)}
        found = {"model": self.source.files, **drafter, **adapters}
        listed = {path for files in found.values() for path in files.values()}
        weights = matched_tensors(self).values() if self.source.checkpoint is not None else ()
        read = {leaf.path for tensor in weights for leaf in tensor.stored}
        assert read <= listed, f"give these a role: {sorted(read - listed)}"
        return found

    @property
    def tensors(self) -> list[StoredTensor]:
        """The model's tensors, in the order of the packed tuple."""
        return [tensor for stored in self.own_storage for tensor in stored.tensors]

    @property
    def parameter_schema_id(self) -> str:
        """Digest of those tensors."""
        return artifacts.parameter_schema_id(self.tensors)


def with_kept_calibration(build: Compilation, entry: object) -> Compilation:
    """The compilation of a library for weights that an earlier run has calibrated, if it has."""
    if build.calibration is not None or not isinstance(entry, dict):
        return build
    return replace(build, calibration=Calibration(entry, {}, {}))


def with_origins(build: Compilation, lock: Lock) -> Compilation:
    """The compilation of the same files, from where those of a package were."""
    source = replace(build.source, origin=lock.origins["model"])
    drafter = build.drafter
    if drafter is not None:
        drafter = replace(drafter, origin=lock.origins[interface.DRAFTER])
    return replace(build, source=source, drafter=drafter)


def fingerprint(build: Compilation) -> str:
    """Equal for runs that write equal weights."""
    sources = (build.source, *((build.drafter,) if build.drafter else ()))
    # What ships is copied to another place in every run, and known by the version.
    made = [one for one in sources if one.origin["kind"] not in SHIPPED]
    given = [one.checkpoint for one in made if one.checkpoint]
    tensors = [tensor for one in given for tensor in one.tensors.values()]
    paths = sorted({stored.path for tensor in tensors for stored in tensor.stored})
    stats = [(path, path.stat()) for path in paths]
    return artifacts.digest(
        {
            "version": __version__,
            "code": code_digest(),  # two checkouts of a version may round in other ways
            "source": dict(build.source.origin),
            "config": repr(build.config),
            "quantised": [quantization_of(one.config) for one in given],
            "files": [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats],
            "recipe": build.recipe.name,
            "allow_nonfinite": build.allow_nonfinite,
            SHARD_SIZE: build.shard_bytes,
            CALIBRATION: build.calibration and dict(build.calibration.entry),
            "tensors": artifacts.parameter_schema_id(
                [tensor for stored in build.storage for tensor in stored.tensors]
            ),
        }
    )


def matched_tensors(build: Compilation) -> dict[str, TensorInfo]:
    """Tensors of all checkpoints by source name."""
    source, drafter = build.source.checkpoint, build.drafter
    assert source is not None, "only the weights are matched"
    found = match(source.tensors, build.config)
    if drafter is not None and drafter.checkpoint is not None:
        found |= match_drafter(drafter.checkpoint, build.config)
    if build.calibration is not None:
        found |= build.calibration.tensors
    return found


def config_digest(config: Gemma4Config) -> str:
    """Digest of a config in provenance."""
    values = dataclasses.asdict(config)
    del values[interface.DRAFTER]  # of another checkpoint, with a digest of its own
    _drop_tied(values)
    for section in ("embedding", "gemma3n"):  # of other models than earlier versions have
        if values[section] is None:
            del values[section]
    if not config.rounds_activations:
        del values["rounds_activations"]
    if config.vision is None:  # of text alone, as earlier versions have it
        del values["vision"], values["bidirectional_images"]
    if config.audio is None:
        del values["audio"]
    return artifacts.digest(values)


def _drop_tied(values: JsonObject) -> None:
    """Leave out that a head is tied: earlier versions have no other."""
    if values["ties_head"]:
        del values["ties_head"]


@cache
def _installed_version(package: str) -> str:
    return importlib.metadata.version(package)


def versions_of(target: TargetSpec) -> dict[str, str]:
    """What makes packages here: programs, and the machine where a library is of its kind."""
    return {
        "gemma4-compile": __version__,
        "code": code_digest(),
        "python": platform.python_version(),
        **{name: _installed_version(name) for name in PACKAGES},
        **({"machine": f"{sys.platform}-{platform.machine()}"} if target.is_by_machine else {}),
        **{name: _version_or_none(name) for name in target.compilers},
    }


def _versions(build: Compilation) -> dict[str, str]:
    """What makes the package: of all targets of its libraries."""
    found: dict[str, str] = {}
    for library in build.libraries:
        found |= versions_of(library.target)
    return found


def _version_or_none(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@cache
def code_digest() -> str:
    """Hash of this program's own files: two checkouts may have one version."""
    hashes: dict[str, str] = {}
    for name, suffixes in _SOURCES.items():
        (folder,) = import_module(f"gemma4_compile.{name}".rstrip(".")).__path__
        for path in Path(folder).rglob("*"):
            inside = path.relative_to(folder)
            is_other = not name and inside.parts[0] in _SOURCES  # installed, they are in it
            if path.suffix in suffixes and not is_other and "prebuilt" not in inside.parts:
                content = hashlib.sha256(path.read_bytes())
                hashes[f"{name}/{inside.as_posix()}"] = content.hexdigest()
    return artifacts.digest(hashes)


def provenance_of(build: Compilation) -> JsonObject:
    """The entry `build` of the package's provenance."""
    return {
        "source": {**build.source.origin, "config": config_digest(build.config)},
        "versions": _versions(build),
        "recipe": build.recipe.name,
        "schemes": {role.value: build.recipe.schemes[role].name for role in _roles(build)},
        "overrides": [[pattern, scheme.name] for pattern, scheme in build.recipe.overrides],
        "target": build.target.name,
        **_device(build.target),
        "limits": build.target.limits,
        "activations": build.target.activations,
        **({"float16": WORDS} if build.target.float16 == WORDS else {}),
        "context_length": build.context_length,
        "prefill_chunk": build.prefill_chunk,
        MODALITIES: sorted(build.config.modalities),
        MEDIA: None if build.media == MediaSettings() else build.media.to_json(),
        "suppressed_tokens": list(build.suppressed),
        "parameter_schema_id": build.parameter_schema_id,
        "requirements": build.numbers.provenance(),
        MEMORY: memory_parts(build.numbers),
        NONFINITE: {} if build.allow_nonfinite else None,
        **_padding(build),
        **({} if build.embedding is None else {interface.EMBEDDING: build.embedding}),
        **({} if build.fitted is None else {FIT: build.fitted}),
        **({} if build.shard_bytes is None else {SHARD_SIZE: build.shard_bytes}),
        **({} if build.calibration is None else {CALIBRATION: build.calibration.entry}),
        **({} if build.drafter is None else {interface.DRAFTER: drafter_provenance(build.drafter)}),
    }


def _roles(build: Compilation) -> list[Role]:
    """The roles that a recipe has a scheme for; of heads only those that there are."""
    used = {stored.parameter.role for stored in (*build.storage, *build.drafter_storage)}
    return [role for role in Role if role not in _SOME_MODELS_ROLES or role in used]


def _padding(build: Compilation) -> JsonObject:
    """The entry of a library that goes on without the padding of the client's pictures."""
    drops = build.target.pads_pictures and build.config.vision is not None
    return {interface.DROPS_PADDING: True} if drops else {}


def _device(target: TargetSpec) -> JsonObject:
    """The device of a target that is not named for it."""
    return {} if target.device == target.name else {interface.DEVICE: target.device}


def drafter_provenance(drafter: DrafterSource) -> JsonObject:
    """The entry of a package's drafter."""
    values = dataclasses.asdict(drafter.config)
    _drop_tied(values)
    return {**drafter.origin, "config": artifacts.digest(values)}
