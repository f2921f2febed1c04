"""The files that a package is made from, with their digests: its lock.

They are by role, `model` or `drafter`, and then by their names below the directory of that role,
which itself is not noted: provenance holds no paths of a machine. What else a package is made from
(an adapter, a tokenizer of another place) is a role of its own in `Compilation.input_files`. A
recipe's file is none of them: provenance has all that it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.checkpoint.chat_files import PROCESSOR_FILE
from gemma4_compile.checkpoint.files import CONFIG_FILE, GENERATION_FILE
from gemma4_compile.checkpoint.hub import NEEDED_FILES
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.checkpoint.sentence_files import pooling_files
from gemma4_compile.errors import ArtifactError, CheckpointError
from gemma4_compile.progress import Reporter
from gemma4_compile.system import regular_files
from gemma4_compile.types import JsonObject

Files = Mapping[str, Path]
"""Files by their names below the directory of a role."""
INPUTS = "inputs"
"""The field of provenance."""
OF_LIBRARY = (CONFIG_FILE, GENERATION_FILE)
"""What a library alone is made from."""
_READ_SINCE = (PROCESSOR_FILE,)  # packages that were made before name no digest of it
_BLOCK_BYTES = 1 << 20
_SHOWN, _SHOWN_DIGITS = 8, 16


@dataclass(frozen=True)
class FileDigest:
    """Size and hash of a file."""

    nbytes: int
    sha256: str

    def __str__(self) -> str:
        return f"sha256 {self.sha256[:_SHOWN_DIGITS]}... of {self.nbytes} bytes"


Digests = Mapping[str, Mapping[str, FileDigest]]
"""Of files by role and name."""


def checkpoint_files(path: Path, tensors: Iterable[TensorInfo] | None) -> dict[str, Path]:
    """The files of a checkpoint's directory that a compilation reads.

    Parameters
    ----------
    path : the directory, or the one file that the checkpoint is
    tensors : None where only a library is made
    """
    if path.is_file():
        return {path.name: path}
    patterns = OF_LIBRARY if tensors is None else (*NEEDED_FILES, *pooling_files(path))
    found = {}
    for pattern in patterns:
        named = path.glob(pattern) if "*" in pattern else [path / pattern]
        found.update({one.relative_to(path).as_posix(): one for one in named if one.is_file()})
    weights = {leaf.path for tensor in tensors or () for leaf in tensor.stored}
    inside = (one for one in weights if one.is_relative_to(path))
    found.update({one.relative_to(path).as_posix(): one for one in inside})
    return dict(sorted(found.items()))


def digest_files(files: Mapping[str, Files], reporter: Reporter) -> Digests:
    """Hash every file whole, a block at a time.

    Raises
    ------
    CheckpointError
        If a file cannot be read.
    """
    try:
        sizes = [path.stat().st_size for named in files.values() for path in named.values()]
        with reporter.progress("hashing the files of the checkpoint", sum(sizes)) as advance:
            advance(0)  # nothing was done before
            found: dict[str, dict[str, FileDigest]] = {}
            for role, named in files.items():
                found[role] = {}
                for name, path in named.items():
                    sha256, nbytes = hashlib.sha256(), 0
                    for block in _blocks(path):
                        sha256.update(block)
                        nbytes += len(block)
                        advance(len(block))
                    found[role][name] = FileDigest(nbytes, sha256.hexdigest())
    except OSError as error:
        raise CheckpointError(f"cannot read `{error.filename}`: {error.strerror}") from error
    return found


def _blocks(path: Path) -> Iterator[bytes]:
    with regular_files.open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def to_json(digests: Digests) -> JsonObject:
    """The field of provenance."""
    return {
        role: {name: {"nbytes": one.nbytes, "sha256": one.sha256} for name, one in named.items()}
        for role, named in digests.items()
    }


def merged(kept: Digests | None, own: Digests) -> Digests | None:
    """Digests of what was made before, and of what is made now; None if the first are not known."""
    if kept is None:
        return None
    roles = dict.fromkeys([*kept, *own])
    return {role: {**kept.get(role, {}), **own.get(role, {})} for role in roles}


@dataclass(frozen=True)
class Lock:
    """What a package that is made again was made from.

    Attributes
    ----------
    origins : of the model and, where there is one, of its drafter: entries of provenance
    inputs : digests that the files must have
    """

    origins: Mapping[str, Mapping[str, object]]
    inputs: Digests

    def of_then(self, found: Digests) -> Digests:
        """The files but those that the version which made the package did not read yet.

        Whether they matter shows in what is made.
        """
        known = self.inputs.get("model", {})
        return {
            role: {
                name: digest
                for name, digest in named.items()
                if role != "model" or name in known or name not in _READ_SINCE
            }
            for role, named in found.items()
        }

    def check(self, found: Digests, *, whole: bool) -> None:
        """Compare the files that are there; not `whole`: those of a library are enough.

        Raises
        ------
        CheckpointError
            Naming each file that is another, is missing, or was not there.
        """
        differences = list(self._differences(found, whole=whole))
        if not differences:
            return
        more = len(differences) - _SHOWN
        shown = "; ".join(differences[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise CheckpointError(
            f"the package was made from other files: {shown}",
            hint="give the checkpoint that it was made from, as MODEL before --rebuild",
        )

    def _differences(self, found: Digests, *, whole: bool) -> Iterator[str]:
        for role in sorted({*self.inputs, *found}):
            expected, own = self.inputs.get(role, {}), found.get(role, {})
            for name in sorted({*expected, *own}):
                where = f"`{name}` of the {role}"
                if name not in own:
                    if whole:
                        yield f"{where} is missing, expected {expected[name]}"
                elif name not in expected:
                    yield f"{where} was not there, found {own[name]}"
                elif own[name] != expected[name]:
                    yield f"{where}: expected {expected[name]}, found {own[name]}"


def read_inputs(build: Mapping[str, object]) -> Digests:
    """The digests in the entry `build` of provenance.

    Raises
    ------
    ArtifactError
        If there are none, as of earlier versions, or they are damaged.
    """
    if INPUTS not in build:
        raise ArtifactError(
            f"`{abi.PROVENANCE_FILE}` names no digests of the files that the package was made "
            "from: an earlier version of gemma4-compile made it",
            hint="compile it anew once: from then on it can be made again",
        )
    values = build[INPUTS]
    if not isinstance(values, Mapping) or not all(map(_is_role, values.values())):
        raise ArtifactError(
            f"`{abi.PROVENANCE_FILE}`: field `{INPUTS}` is damaged",
            hint="compile the package again",
        )
    return {
        role: {name: FileDigest(one["nbytes"], one["sha256"]) for name, one in named.items()}
        for role, named in values.items()
    }


def _is_role(named: object) -> bool:
    return isinstance(named, Mapping) and all(
        isinstance(one, Mapping)
        and type(one.get("nbytes")) is int
        and isinstance(one.get("sha256"), str)
        for one in named.values()
    )
