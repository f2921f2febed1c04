"""The output directory appears whole or not at all: written beside it, renamed at the end.

`.NAME.partial` is where a run works; `.NAME.replaced` is, for a moment, the package that it
replaces. A run that was killed leaves its partial directory behind: the next run for the same
output takes it over, and packaging decides what of it can be used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gemma4_compile import abi
from gemma4_compile.artifacts import Provenance, read_artifact
from gemma4_compile.errors import ArtifactError, UsageError

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"
PROGRESS_FILE = "progress.json"
SHARD_PATTERN = "params_shard_*.bin"


def is_package(path: Path) -> bool:
    """Whether a directory is a package of ours."""
    if not (path / abi.PROVENANCE_FILE).is_file():
        return False
    try:
        Provenance.from_json(read_artifact(path / abi.PROVENANCE_FILE))
    except ArtifactError:
        return False
    return True


def check_output(output: Path, *, force: bool) -> None:
    """Raise UsageError if `output` holds something that a run must not replace."""
    if sys.platform == "win32":
        raise UsageError(
            "packages cannot be written on Windows, whose open files cannot be replaced",
            hint="run gemma4-compile in the Windows Subsystem for Linux; a package works anywhere",
        )
    if not os.path.lexists(output):
        return
    if output.is_symlink() or not output.is_dir():
        raise UsageError(f"`{output}` exists and is no directory", hint="choose another -o")
    if not force and any(output.iterdir()) and not is_package(output):
        raise UsageError(
            f"`{output}` exists and is no package of gemma4-compile",
            hint="choose another -o, or replace it with --force",
        )


def check_place(output: Path, checkpoint: Path | None) -> None:
    """Raise UsageError if `output`, which is replaced as a whole, holds what must stay.

    Parameters
    ----------
    checkpoint : where the model is, if it is a directory
    """
    try:
        str(output).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"-o `{output}`: the name is not UTF-8", hint="give another name"
        ) from error
    replaced = output.resolve()
    kept = {"the directory that you are in": Path.cwd()}
    with contextlib.suppress(RuntimeError):  # there is no home directory
        kept["your home directory"] = Path.home()
    if checkpoint is not None:
        kept[f"the checkpoint `{checkpoint}`"] = checkpoint
    for what, path in kept.items():
        if path.exists() and path.resolve().is_relative_to(replaced):
            raise UsageError(
                f"-o `{output}` would replace {what}",
                hint="give -o a directory of its own, which is made where it is missing",
            )


def check_writable(output: Path) -> None:
    """Raise ArtifactError if `output`, a package, could not be replaced: that is done beside it."""
    parent = Path(os.path.abspath(output)).parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(
            f"`{output}` cannot be replaced: `{parent}` is not writable",
            hint="check the directory's permissions, or copy the package to another place",
        )


@contextlib.contextmanager
def write_errors(path: Path, option: str = "-o") -> Iterator[None]:
    """Turn errors of the file system while writing to `path` into ArtifactError.

    `option` is what chose the path.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArtifactError(
                f"no space left on the device while writing `{path}`",
                hint=f"free some space, or choose an {option} on another disk",
            ) from error
        raise ArtifactError(
            f"cannot write `{path}`: {error.strerror or error}",
            hint=f"check the directory's permissions, or choose another {option}",
        ) from error


def _replace(partial: Path, output: Path, replaced: Path) -> None:
    if output.exists():
        output.rename(replaced)
    try:
        partial.rename(output)
    except OSError:
        if replaced.exists():
            replaced.rename(output)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def output_directory(output: Path, *, force: bool) -> Iterator[Path]:
    """Yield the directory to write into; rename it to `output` when the block ends well.

    After an error the directory is removed. After an interruption (or a kill) it stays if it holds
    finished shards, so that the same command can go on from them.

    Raises
    ------
    UsageError
        If `output` exists and is neither empty nor one of our packages, unless `force`.
    ArtifactError
        If the directory cannot be made, or another run is writing it.
    """
    output = Path(os.path.abspath(output))
    partial = output.with_name(f".{output.name}.partial")
    replaced = output.with_name(f".{output.name}.replaced")
    check_output(output, force=force)
    made = _missing_parents(output)
    with write_errors(output):
        partial.mkdir(parents=True, exist_ok=True)
        if replaced.exists():  # a run was killed between two renames
            if output.exists():
                shutil.rmtree(replaced)
            else:
                replaced.rename(output)
        lock = (partial / LOCK_FILE).open("w")
    with lock:
        if not _is_locked(lock, partial / LOCK_FILE):
            raise ArtifactError(
                f"another run is writing `{output}`", hint="wait for it, or choose another -o"
            )
        try:
            with write_errors(output):
                _remove_all_but_shards(partial)
            yield partial
            with write_errors(output):
                (partial / LOCK_FILE).unlink()
                _replace(partial, output, replaced)
        except BaseException as error:
            if isinstance(error, Exception) or not (partial / PROGRESS_FILE).exists():
                shutil.rmtree(partial, ignore_errors=True)
                for parent in made:
                    with contextlib.suppress(OSError):
                        parent.rmdir()
            raise


def _is_locked(lock: IO[str], path: Path) -> bool:
    """Take the lock; False if another run has it, or had it and took the file away at its end."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except OSError:
        return False


def _remove_all_but_shards(partial: Path) -> None:
    """What a killed run left, save the weights that it may have finished."""
    for path in partial.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, PROGRESS_FILE) and not path.match(SHARD_PATTERN):
            path.unlink()


def _missing_parents(path: Path) -> tuple[Path, ...]:
    """Directories above `path` that do not exist yet, innermost first."""
    return tuple(parent for parent in path.parents if not parent.exists())
