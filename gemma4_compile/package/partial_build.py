"""Partial builds: what `--only` keeps of a package when it renews its library or its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gemma4_compile import abi
from gemma4_compile.checkpoint.input_files import INPUTS, Digests, merged, read_inputs, to_json
from gemma4_compile.checkpoint.nonfinite import Counts
from gemma4_compile.errors import UsageError
from gemma4_compile.media.settings import MEDIA
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.options import OLD_ACTIVATIONS
from gemma4_compile.package.artifacts import Build, Provenance, read_artifact
from gemma4_compile.package.interface import DRAFTER
from gemma4_compile.types import JsonObject

PartialBuild = Literal["library", "weights"]
_SHORT = 24  # characters of a value in a message
MODALITIES = "modalities"  # of the provenance: what the package takes
_BY = {
    MEDIA: " (by --image-tokens or --image-shape)",
    MODALITIES: " (by --modalities)",
}
CONVERSATION = "conversation"  # of the provenance: how the client's prompts differ
NONFINITE = "nonfinite_weights"  # of the provenance: counts, or None where they are refused
CALIBRATION = "calibration"  # of the provenance: how integers were chosen, where a text did it
LIBRARY_ALONE = "library_alone"  # of the provenance: it was made without the weights


@dataclass(frozen=True)
class Kept:
    """Of the package that is there.

    Attributes
    ----------
    library : its library's file, if that is kept
    files : names of all kept files
    nonfinite : of the weights that are kept
    conversation : how the client's prompts differ from their template; None if they do not
    inputs : digests of the files that it was made from; None of a package that has none
    library_alone : whether a kept library was made without the weights
    calibration : of the weights that are kept, as provenance has it
    """

    library: str | None = None
    files: tuple[str, ...] = ()
    nonfinite: Counts | None = None
    conversation: object = None
    inputs: Digests | None = field(default_factory=dict)
    library_alone: bool = False
    calibration: object = None


def _values(old: object, new: object) -> str:
    """Both values, where they are short."""
    short = all(isinstance(value, (str, int)) and len(str(value)) <= _SHORT for value in (old, new))
    return f" ({old}, asked for: {new})" if short else ""


def rest_of_package(output: Path, renewed: PartialBuild, provenance: Build) -> Kept:
    """The part of the package at `output` that is not renewed; nothing where there is no package.

    Parameters
    ----------
    provenance : of the part that will be made, as far as it is known before

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
    ignored = {"versions", "requirements", NONFINITE}
    ignored |= {"activations"} if renewed == "library" else set()
    differences = []
    if renewed == "weights" and (CALIBRATION in old.build) != (CALIBRATION in provenance):
        differences.append(f"{'with' if CALIBRATION in old.build else 'without'} --calibrate")
    if (DRAFTER in old.build) != (DRAFTER in provenance):
        differences.append(f"{'with' if DRAFTER in old.build else 'without'} a drafter")
    # The source's digest is one of the config of these modalities.
    differences += [
        f"with another `{name}`{_BY.get(name) or _values(build.get(name), value)}"
        for name, value in sorted(provenance.items(), key=lambda item: item[0] != MODALITIES)
        if name not in ignored and build.get(name) != value
    ]
    allowed = old.build.get(NONFINITE) is not None
    if allowed != (provenance[NONFINITE] is not None):
        differences.append(f"made {'with' if allowed else 'without'} --allow-nonfinite")
    if differences:
        raise UsageError(
            f"`{output}` holds a package {differences[0]}: the new {renewed} would not fit to it",
            hint="choose another -o, or replace the whole package with --force",
        )
    if renewed == "weights":
        with_library = (old.library, *abi.LICENCE_FILES)
        files = tuple(name for name in old.files if name in with_library)
        alone = old.build.get(LIBRARY_ALONE) is True
        return Kept(old.library, files, inputs=_inputs(old.build), library_alone=alone)
    # A numerics report is of one library.
    gone = (old.library, *abi.LICENCE_FILES, *abi.NUMERICS_FILES)
    files = tuple(name for name in old.files if name not in gone)
    noted = old.build.get(NONFINITE), old.build.get(CONVERSATION)
    calibration = old.build.get(CALIBRATION)
    return Kept(None, files, *noted, _inputs(old.build), calibration=calibration)


def _inputs(build: Build) -> Digests | None:
    return read_inputs(build) if INPUTS in build else None


def lock_of(kept: Kept, renewed: PartialBuild | None, own: Digests) -> JsonObject:
    """The fields of provenance by which a package can be made again.

    They are left out where what was kept has none: half of them would pass for all.

    Parameters
    ----------
    own : digests of what this run has read
    """
    is_alone = renewed == "library" or kept.library_alone
    inputs = own if renewed != "library" else merged(kept.inputs, own)
    return {
        **({LIBRARY_ALONE: True} if is_alone else {}),
        **({} if inputs is None else {INPUTS: to_json(inputs)}),
    }
