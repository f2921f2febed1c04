"""Files of a package: written, taken over from an earlier one, hashed and listed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.fields import COMPILE_AGAIN
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.package.output_directory import LOCK_FILE, PROGRESS_FILE, write_errors
from gemma4_compile.package.pieces import Listed, PieceHashes, Pieces
from gemma4_compile.system import regular_files
from gemma4_compile.system.files import link_file
from gemma4_compile.types import JsonObject

_HASH_BLOCK_BYTES = 1 << 20
_FILE_MODE = 0o644  # of every file of a package, whatever the umask


@dataclass(frozen=True)
class FileHash:
    """Hashes of a file, and of its pieces where it has several."""

    md5: str
    sha256: str
    pieces: Pieces | None = None

    @property
    def listed(self) -> Listed:
        """What `provenance.json` lists of it."""
        return Listed(self.sha256, self.pieces)


def hash_file(path: Path) -> FileHash:
    """Read a regular file once and hash it."""
    md5, sha256, pieces = hashlib.md5(usedforsecurity=False), hashlib.sha256(), PieceHashes()
    with regular_files.open_regular(path) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            md5.update(block)
            sha256.update(block)
            pieces.update(block)
    found = pieces.end()
    several = found if len(found.sha256) > 1 else None
    return FileHash(md5.hexdigest(), sha256.hexdigest(), several)


def check_pieces(package: Path, provenance: Provenance) -> None:
    """Hold long files against the hashes of their pieces.

    Raises
    ------
    ArtifactError
        If those are of other bytes than the file's own hash, which was looked at before: a browser
        would take the file as damaged.
    """
    for name in provenance.files.keys() & provenance.pieces.keys():
        found = PieceHashes(provenance.pieces[name].nbytes)
        with regular_files.open_regular(package / name) as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                found.update(block)
        if found.end() != provenance.pieces[name]:
            raise ArtifactError(
                f"`{name}` of `{package}`: the hashes of its pieces in `{abi.PROVENANCE_FILE}` are "
                "of other bytes than its sha256",
                hint=COMPILE_AGAIN,
            )


def write_json(path: Path, values: object, *, compact: bool = False) -> None:
    """Write a JSON file of the package; compact is one line, for what nobody reads."""
    write_text(path, json_text(values, indent=None if compact else 1) + "\n")


def json_text(values: object, *, indent: int | None, ascii_only: bool = False) -> str:
    """JSON of values; NaN and infinities, which JSON has not, are null. Without `indent` a line."""
    separators = (",", ":") if indent is None else None
    as_text = partial(
        json.dumps, ensure_ascii=ascii_only, indent=indent, separators=separators, allow_nan=False
    )
    try:
        return as_text(values)
    except ValueError:  # a measure of numbers that ran over
        return as_text(_finite(values))


def _finite(values: object) -> object:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {name: _finite(value) for name, value in values.items()}
    return [_finite(value) for value in values] if isinstance(values, list | tuple) else values


def write_text(path: Path, text: str) -> None:
    """Write a text file of the package."""
    with write_errors(path):
        regular_files.write_new(path, text.encode("utf-8"))


def copy_file(source: Path, directory: Path) -> None:
    """Copy a regular file's content into the package under its own name."""
    with (
        write_errors(directory / source.name),
        regular_files.open_regular(source) as read,
        regular_files.open_new(directory / source.name) as written,
    ):
        while block := read.read(_HASH_BLOCK_BYTES):
            regular_files.write_all(written, block)


def copy_json(source: Path, directory: Path) -> None:
    """Copy a JSON file into the package without its line breaks and indentation.

    No text of JSON holds a line break, so what surrounds one is white space between its parts.
    `tokenizer.json` of a released model has 33 MB, of which 19 are indentation.
    """
    with (
        write_errors(directory / source.name),
        regular_files.open_regular(source) as read,
        regular_files.open_new(directory / source.name) as written,
    ):
        while lines := read.readlines(_HASH_BLOCK_BYTES):
            regular_files.write_all(written, b"".join(map(bytes.strip, lines)))


def check_kept(package: Path, sha256: Mapping[str, str]) -> dict[str, Listed]:
    """Hash the files of a package that another one will hold; returns what that one lists of them.

    Raises
    ------
    ArtifactError
        If one is not what is listed: the new package would list what it became as right.
    """
    kept = {}
    for name, listed in sha256.items():
        try:
            kept[name] = hash_file(package / name).listed
        except OSError as error:
            raise _not_kept(package, name, error) from error
        if kept[name].sha256 != listed:
            raise ArtifactError(
                f"cannot keep `{name}` of `{package}`, which is damaged: expected sha256 "
                f"{listed:.12}, found {kept[name].sha256:.12}",
                hint="put back what it was, or replace the whole package with --force, without "
                "--only",
            )
    return kept


def _not_kept(package: Path, name: str, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot keep `{name}` of `{package}`: {error.strerror}",
        hint="replace the whole package with --force, without --only",
    )


def take_over(package: Path, names: Iterable[str], directory: Path) -> None:
    """Link files of an existing package into this run's directory (copy them across devices).

    Raises
    ------
    ArtifactError
        If one is no regular file of the package: the new one would hold what it leads to.
    """
    for name in names:
        source, path = package / name, directory / name
        try:
            regular_files.check_inside(source)
            regular_files.check_regular(source.stat())
            linked = not source.is_symlink()
        except OSError as error:
            raise _not_kept(package, name, error) from error
        with write_errors(path):
            path.unlink(missing_ok=True)
            try:
                if linked:
                    link_file(source, path)
                    continue
            except OSError:
                path.unlink(missing_ok=True)
            copy_file(source, directory)


def finish(
    directory: Path,
    library: str | None,
    build: JsonObject,
    known: Mapping[str, Listed] = MappingProxyType({}),
    libraries: Sequence[LibraryRecord] = (),
) -> Provenance:
    """Hash every file and write `provenance.json`; what only the run needed is removed.

    Parameters
    ----------
    library : file of the main library
    known : hashes that need not be computed: of shards, which are large
    libraries : all of them, the main one first
    """
    with write_errors(directory):
        (directory / PROGRESS_FILE).unlink(missing_ok=True)
        for path in directory.iterdir():
            _set_mode(path)
        hashes = {
            path: known.get(path.name) or hash_file(path).listed
            for path in sorted(directory.iterdir())
            if path.name not in (LOCK_FILE, abi.PROVENANCE_FILE)
        }
        files = {path.name: (path.stat().st_size, one.sha256) for path, one in hashes.items()}
    pieces = {path.name: one.pieces for path, one in hashes.items() if one.pieces is not None}
    provenance = Provenance(library, build, files, tuple(libraries), pieces)
    write_json(directory / abi.PROVENANCE_FILE, provenance.to_json())
    with write_errors(directory):
        _set_mode(directory / abi.PROVENANCE_FILE)
    return provenance


def _set_mode(path: Path) -> None:
    """Set a file's mode, but never that of what a link leads to."""
    regular_files.check_regular(path.lstat())
    path.chmod(_FILE_MODE)
