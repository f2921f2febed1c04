"""Partial builds: what `--only` keeps of a package when it renews its library or its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gemma4_compile import abi
from gemma4_compile.checkpoint.input_files import INPUTS, Digests, merged, read_inputs, to_json
from gemma4_compile.checkpoint.nonfinite import Counts
from gemma4_compile.errors import UsageError
from gemma4_compile.media.settings import MEDIA
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.options.package import OLD_ACTIVATIONS
from gemma4_compile.package.artifacts import Build, Provenance, read_artifact
from gemma4_compile.package.interface import DEVICE, DRAFTER, DROPS_PADDING
from gemma4_compile.package.libraries import LIBRARY_ALONE, LibraryRecord, numerics_files
from gemma4_compile.types import JsonObject

PartialBuild = Literal["library", "weights"]
_SHORT = 24  # characters of a value in a message
SCHEMA_ID = "parameter_schema_id"  # of the provenance: how the weights are stored
SHARD_SIZE = "shard_bytes"  # of the provenance: what --shard-size said
MODALITIES = "modalities"  # of the provenance: what the package takes
_BY = {
    MEDIA: " (by --image-tokens or --image-shape)",
    MODALITIES: " (by --modalities)",
    SHARD_SIZE: " (by --shard-size)",
    SCHEMA_ID: " (by other splits of its tensors, or of another version)",
}
_FIRST = (MODALITIES, SHARD_SIZE)
"""Differences from which others follow."""
CONVERSATION = "conversation"  # of the provenance: how the client's prompts differ
NONFINITE = "nonfinite_weights"  # of the provenance: counts, or None where they are refused
CALIBRATION = "calibration"  # of the provenance: how integers were chosen, where a text did it
MEMORY = "memory"  # of the provenance: bytes by part of the memory that the main library needs
FIT = "fit"  # of the provenance: the budget of --fit, and what it chose
OF_LIBRARY = (
    *("target", DEVICE, "limits", "activations", "float16", "requirements", MEMORY),
    DROPS_PADDING,
)
"""Of the provenance: what is the main library's alone."""
_VERSIONS = "versions"


@dataclass(frozen=True)
class Kept:
    """Of the package that is there.

    Attributes
    ----------
    library : its main library's file, if that is kept
    files : names of all kept files
    nonfinite : of the weights that are kept
    conversation : how the client's prompts differ from their template; None if they do not
    inputs : digests of the files that it was made from; None of a package that has none
    library_alone : whether a kept library was made without the weights
    calibration : of the weights that are kept, as provenance has it
    libraries : those that are kept, the main one first if it is among them
    build : fields of its provenance that belong to kept libraries
    sha256 : of the kept files, as provenance has them
    fitted : what a budget chose for the package
    """

    library: str | None = None
    files: tuple[str, ...] = ()
    nonfinite: Counts | None = None
    conversation: object = None
    inputs: Digests | None = field(default_factory=dict)
    library_alone: bool = False
    calibration: object = None
    libraries: tuple[LibraryRecord, ...] = ()
    build: Mapping[str, object] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    fitted: object = None

    def with_rest(self, provenance: JsonObject) -> JsonObject:
        """The entry of a build with what is of the libraries that are kept."""
        versions = self.build.get(_VERSIONS)
        rest = dict(provenance)
        if isinstance(versions, Mapping):  # what is here now, and what made those for other targets
            rest[_VERSIONS] = {**versions, **provenance[_VERSIONS]}
        if self.fitted is not None:
            rest.setdefault(FIT, self.fitted)
        if self.library is None:
            return rest
        own = {name: self.build[name] for name in OF_LIBRARY if name in self.build}
        return {name: value for name, value in rest.items() if name not in OF_LIBRARY} | own


def _values(old: object, new: object) -> str:
    """Both values, where they are short."""
    short = all(isinstance(value, (str, int)) and len(str(value)) <= _SHORT for value in (old, new))
    return f" ({old}, asked for: {new})" if short else ""


def rest_of_package(
    output: Path,
    renewed: PartialBuild,
    provenance: Build,
    names: Collection[str] = (),
    *,
    beside: bool = False,
) -> Kept:
    """The part of the package at `output` that is not renewed; nothing where there is no package.

    Parameters
    ----------
    provenance : of the part that will be made, as far as it is known before
    names : of the libraries that will be made
    beside : the package's other libraries stay; so they do wherever it has several

    Raises
    ------
    UsageError
        If the package there was made with other options, so that the parts would not fit.
    """
    path = output / abi.PROVENANCE_FILE
    if not path.exists():
        return Kept()
    old = Provenance.from_json(read_artifact(path))
    build = dict(old.build)
    form = build.get("activations")
    build.setdefault(MODALITIES, [Modality.TEXT.value])  # of earlier versions
    build["activations"] = OLD_ACTIVATIONS.get(str(form), form)
    # The weights are the same for every form of activations, so a new library may choose another.
    # What a device must offer follows from the other fields.
    ignored = {_VERSIONS, "requirements", MEMORY, FIT, NONFINITE}
    stay = renewed == "library" and (beside or len(old.libraries) > 1)
    ignored |= set(OF_LIBRARY) if stay else {"activations"} if renewed == "library" else set()
    differences = []
    if renewed == "weights" and (CALIBRATION in old.build) != (CALIBRATION in provenance):
        differences.append(f"{'with' if CALIBRATION in old.build else 'without'} --calibrate")
    if (DRAFTER in old.build) != (DRAFTER in provenance):
        differences.append(f"{'with' if DRAFTER in old.build else 'without'} a drafter")
    # The source's digest is one of the config of these modalities.
    differences += [
        f"with another `{name}`{_BY.get(name) or _values(build.get(name), value)}"
        for name, value in sorted(provenance.items(), key=lambda item: item[0] not in _FIRST)
        if name not in ignored and build.get(name) != value
    ]
    if "float16" not in ignored and "float16" in build and "float16" not in provenance:
        differences.append(f"with another `float16` ({build['float16']}, asked for: native)")
    allowed = old.build.get(NONFINITE) is not None
    if allowed != (provenance[NONFINITE] is not None):
        differences.append(f"made {'with' if allowed else 'without'} --allow-nonfinite")
    if differences:
        raise UsageError(
            f"`{output}` holds a package {differences[0]}: the new {renewed} would not fit to it",
            hint="choose another -o, or replace the whole package with --force",
        )
    if renewed == "weights":
        with_library = (*(one.file for one in old.libraries), *abi.LICENCE_FILES)
        files = tuple(name for name in old.files if name in with_library)
        alone = old.build.get(LIBRARY_ALONE) is True
        return Kept(
            old.library,
            files,
            inputs=_inputs(old.build),
            library_alone=alone,
            libraries=old.libraries,
            build=old.build,
            sha256=_hashes(old, files),
            fitted=old.build.get(FIT),
        )
    others = tuple(one for one in old.libraries if stay and one.name not in names)
    main = old.library if any(one.file == old.library for one in others) else None
    gone = {*abi.LICENCE_FILES, *(() if main else abi.NUMERICS_FILES)}
    for one in old.libraries:  # a numerics report is of one library
        if one not in others:
            gone |= {one.file, *numerics_files(one.name, main=one.file == old.library)}
    files = tuple(name for name in old.files if name not in gone)
    noted = old.build.get(NONFINITE), old.build.get(CONVERSATION)
    calibration = old.build.get(CALIBRATION)
    return Kept(
        main,
        files,
        *noted,
        _inputs(old.build),
        library_alone=main is not None and old.build.get(LIBRARY_ALONE) is True,
        calibration=calibration,
        libraries=others,
        build=old.build if others else {},
        sha256=_hashes(old, files),
        fitted=old.build.get(FIT),
    )


def _hashes(old: Provenance, names: Collection[str]) -> dict[str, str]:
    return {name: old.files[name][1] for name in names}


def _inputs(build: Build) -> Digests | None:
    return read_inputs(build) if INPUTS in build else None


def lock_of(kept: Kept, renewed: PartialBuild | None, own: Digests) -> JsonObject:
    """The fields of provenance by which a package can be made again.

    They are left out where what was kept has none: half of them would pass for all.

    Parameters
    ----------
    own : digests of what this run has read
    """
    is_alone = (renewed == "library" and kept.library is None) or kept.library_alone
    inputs = own if renewed != "library" else merged(kept.inputs, own)
    return {
        **({LIBRARY_ALONE: True} if is_alone else {}),
        **({} if inputs is None else {INPUTS: to_json(inputs)}),
    }
