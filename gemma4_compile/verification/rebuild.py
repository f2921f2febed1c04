"""`--rebuild`: a package made again from what its provenance says, and held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.checkpoint.gguf.opening import FROM_DIRECTORY, TOKENIZER_ENTRY
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.checkpoint.input_files import Lock, read_inputs
from gemma4_compile.checkpoint.sources import SHIPPED, TINY
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import (
    ArtifactError,
    InterruptedRunError,
    UsageError,
    VerificationError,
    printable,
)
from gemma4_compile.model_spec.config.gemma4 import encoder_presets, preset_names
from gemma4_compile.package.artifacts import Build, Provenance, read_artifact
from gemma4_compile.package.files import hash_file
from gemma4_compile.package.interface import DRAFTER
from gemma4_compile.package.libraries import LibraryRecord, numerics_files
from gemma4_compile.package.partial_build import CALIBRATION
from gemma4_compile.progress import Reporter
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.regular_files import resolved
from gemma4_compile.targets.libraries import LibraryForm
from gemma4_compile.targets.spec import NATIVE
from gemma4_compile.verification.adapters import adapters_of
from gemma4_compile.verification.subject import provenance_of, request_of

VERSIONS = "versions"


@dataclass(frozen=True)
class RebuildRequest:
    """A package to make again.

    Attributes
    ----------
    model, drafter : where the checkpoints are; None for where provenance says that they were
    adapters : where they are; none for those on the hub that provenance names
    tokenizer : where that of a model in GGUF is, if it was given
    output : None for a place that is gone afterwards
    """

    package: Path
    model: str | None = None
    drafter: str | None = None
    tokenizer: str | None = None
    adapters: tuple[str, ...] = ()
    output: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class Rebuilt:
    """What came of it.

    Attributes
    ----------
    files : number of files that were compared
    differences : what is not the same, a line each
    versions : what other versions made it, a line each
    damaged : files that provenance lists as they were made, and that are others in the package now
    """

    package: Path
    files: int
    differences: tuple[str, ...]
    versions: tuple[str, ...]
    damaged: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The outcome as text."""
        damaged = [
            f"{name}: missing or changed since it was made; made again, it is what "
            f"{abi.PROVENANCE_FILE} lists"
            for name in self.damaged
        ]
        lines = map(printable, (*self.versions, *self.differences, *damaged))  # of anybody's file
        found = [f"{self.package}: {line}" for line in lines]
        is_same = not self.differences and not damaged
        return [*found, f"{self.package}: the same bytes again"] if is_same else found

    def check(self) -> None:
        """Raise VerificationError if the bytes are not the same."""
        if self.damaged and not self.differences:
            raise VerificationError(
                f"`{self.package}` is damaged",
                hint="give -o DIR and take the package that is made there",
            )
        if self.differences:
            hint = "its files are the same, and its compiler is not: the versions above made it"
            if not self.versions:
                hint = "report it, with both directories: a package should not depend on more"
            count = len(self.differences)
            raise VerificationError(
                f"`{self.package}` was not made again: {count} of its parts "
                f"{'is another' if count == 1 else 'are others'}",
                hint=hint,
            )


def rebuild(request: RebuildRequest, reporter: Reporter) -> Rebuilt:
    """Make a package again, and compare all of it.

    Raises
    ------
    UsageError
        If provenance does not say where the checkpoint is, and the request neither.
    ArtifactError
        If the package's provenance is damaged or older.
    CheckpointError
        If the files are not those that it was made from.
    """
    provenance = provenance_of(request.package)
    build = provenance.build
    if CALIBRATION in build:
        raise UsageError(
            f"`{request.package}` was made with --calibrate, whose sums depend on torch and on the "
            "processor: it cannot be made again",
            hint="compile the checkpoint again with --calibrate, and compare with gemma4-verify",
        )
    lock = Lock(_origins(build), read_inputs(build))
    with _place(request) as output:
        for asked in _requests(request, provenance, lock, output):
            compile_model(asked, reporter)
        made = Provenance.from_json(read_artifact(output / abi.PROVENANCE_FILE))
    found = compare(request.package, provenance, made)
    same = [name for name, file in made.files.items() if provenance.files.get(name) == file]
    damaged = [name for name in same if not _is_there(request.package / name, made.files[name][1])]
    return replace(found, damaged=tuple(sorted({*damaged} - _reports(provenance))))


def _reports(provenance: Provenance) -> set[str]:
    """Names of the files that gemma4-verify may have written."""
    named = (numerics_files(one.name, main=False) for one in provenance.libraries)
    return {*abi.NUMERICS_FILES, *(file for pair in named for file in pair)}


def _is_there(path: Path, sha256: str) -> bool:
    try:
        return hash_file(path).sha256 == sha256
    except OSError:
        return False


def _origins(build: Build) -> dict[str, Mapping[str, object]]:
    """Entries of provenance without the digests of configs, which a compilation adds."""
    entries = {"model": build["source"], **({DRAFTER: build[DRAFTER]} if DRAFTER in build else {})}
    return {
        role: {key: value for key, value in entry.items() if key != "config"}
        for role, entry in entries.items()
    }


def _requests(
    request: RebuildRequest, provenance: Provenance, lock: Lock, output: Path
) -> Iterator[CompileRequest]:
    """What is compiled, one after the other: a library alone if it was made so."""
    build, (model, revision) = provenance.build, _model(request, provenance.build)
    drafter = _drafter(request, provenance.build)
    asked = replace(
        request_of(build, model, output, revision),
        drafter=drafter,
        tokenizer=_tokenizer(request, build),
        adapters=adapters_of(request.package, request.adapters, build),
        lock=lock,
        force=request.force,
    )
    has_weights = abi.TENSOR_CACHE_FILE in provenance.files
    libraries = provenance.libraries
    alone = [one for one in libraries if one.alone or not has_weights]
    beside = [one for one in libraries if one not in alone]
    if has_weights and beside:
        first = libraries[0]  # made first, and then again where it is one of those made alone
        whole = [first, *(one for one in beside if one is not first)]
        yield replace(asked, libraries=_forms(whole))
        if not alone:
            return
    elif not request.force and output.exists():
        raise UsageError(
            f"`{output}` exists, and a part of a package would keep the rest of it",
            hint="choose another -o, or replace it with --force",
        )
    if has_weights and not beside:
        yield replace(asked, only="weights", libraries=_forms(libraries))
    if alone:
        # With --force nothing would be kept.
        forced = request.force and not has_weights
        yield replace(asked, only="library", force=forced, libraries=_forms(alone))


def _forms(records: Sequence[LibraryRecord]) -> tuple[LibraryForm, ...]:
    """What is asked for to have these libraries."""
    return tuple(
        LibraryForm(one.name, one.target, one.limits, one.activations, one.float16 or NATIVE)
        for one in records
    )


def _model(request: RebuildRequest, build: Build) -> tuple[str, str | None]:
    """Name and revision of the checkpoint."""
    source = build["source"]
    if request.model is not None:
        return request.model, None
    if source.get("kind") in SHIPPED:
        return str(source["kind"]), None
    name, revision = str(source.get("model")), source.get("revision")
    if source.get("kind") == "hub" and is_hub_id(name) and isinstance(revision, str):
        return name, revision
    if source.get("kind") == "preset" and name in (*preset_names(), *encoder_presets()):
        return name, None
    raise UsageError(
        f"`{request.package}` was made from files of a directory, and packages do not say which",
        hint=f"give it: gemma4-compile DIR --rebuild {request.package}",
    )


def _tokenizer(request: RebuildRequest, build: Build) -> str | None:
    """Name of the tokenizer that was given for a model in GGUF; None if none was."""
    entry = build["source"].get(TOKENIZER_ENTRY)
    if request.tokenizer is not None:
        return request.tokenizer
    if entry == FROM_DIRECTORY:
        raise UsageError(
            f"the tokenizer of `{request.package}` is from a directory, and packages do not say "
            "which",
            hint="give it with --tokenizer DIR",
        )
    name = str(entry)
    return name if "@" in name and is_hub_id(name.partition("@")[0]) else None


def _drafter(request: RebuildRequest, build: Build) -> str | None:
    """Name of the drafter's checkpoint, if there is one."""
    source = build.get(DRAFTER)
    if source is None:
        if request.drafter is not None:
            raise UsageError(f"--drafter: `{request.package}` has no drafter", hint="leave it out")
        return None
    if request.drafter is not None:
        return request.drafter
    if source["kind"] == TINY:
        return TINY
    if source["kind"] == "hub" and is_hub_id(str(source.get("model"))):
        return f"{source['model']}@{source['revision']}"
    raise UsageError(
        f"the drafter of `{request.package}` is from a directory, and packages do not say which",
        hint="give it with --drafter DIR",
    )


@contextmanager
def _place(request: RebuildRequest) -> Iterator[Path]:
    """Where it is made: -o, or beside the package, where there is room for as much."""
    package = resolved(request.package)
    if request.output is not None:
        if resolved(request.output) == package:
            raise UsageError(
                f"-o `{request.output}` is the package that is made again",
                hint="choose another -o, or leave it out to compare alone",
            )
        yield request.output
        return
    try:
        folder = scratch_folder(prefix=f".{package.name}-again-", dir=package.parent)
    except OSError as error:
        raise ArtifactError(
            f"cannot write beside `{request.package}`: {error.strerror}", hint="give another -o"
        ) from error
    with folder as path:
        try:
            yield Path(path) / package.name
        except InterruptedRunError as error:  # what it left goes with the folder
            raise KeyboardInterrupt from error


def compare(package: Path, old: Provenance, new: Provenance) -> Rebuilt:
    """Hold one package's provenance against another's, which has the hashes of all files.

    What gemma4-verify wrote into it later is no part of its build.
    """
    names = sorted({*old.files, *new.files} - _reports(old))
    differences = [
        f"{name}: expected {_file(old, name)}, found {_file(new, name)}"
        for name in names
        if old.files.get(name) != new.files.get(name)
    ]
    fields = sorted({*old.build, *new.build} - {VERSIONS})
    differences += [
        f"{abi.PROVENANCE_FILE}: `{name}` is another"
        for name in fields
        if old.build.get(name) != new.build.get(name)
    ]
    known = sorted({one.name for one in (*old.libraries, *new.libraries)})
    entries = [{one.name: one for one in made.libraries} for made in (old, new)]
    differences += [
        f"{abi.PROVENANCE_FILE}: library `{name}` is another"
        for name in known
        if entries[0].get(name) != entries[1].get(name)
    ]
    before, now = (_versions(one.build) for one in (old, new))
    versions = [
        f"made by {name} {before.get(name, 'unknown')}, here is {now.get(name, 'none')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    return Rebuilt(package, len(names), tuple(differences), tuple(versions))


def _versions(build: Build) -> Mapping[str, object]:
    versions = build.get(VERSIONS)
    return versions if isinstance(versions, Mapping) else {}


def _file(provenance: Provenance, name: str) -> str:
    if name not in provenance.files:
        return "no such file"
    nbytes, sha256 = provenance.files[name]
    return f"sha256 {sha256} of {nbytes} bytes"
