"""The output directory appears whole or not at all: written next to it, renamed at the end.

`.NAME.partial` is where a run works; `.NAME.replaced` is, for a moment, the package that it
replaces. A run that was killed leaves its partial directory behind: the next run for the same
output takes it over, and packaging decides what of it can be used. Both names are known before, so
anybody who can write there (or pack an archive that is unpacked there) may have put something in
their place: only real directories of this user, and of a run, are taken over or removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, InterruptedRunError, UsageError
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.system import files, locks, names, regular_files

LOCK_FILE = ".lock"
PROGRESS_FILE = "progress.json"
SHARD_PATTERN = "params_shard_*.bin"


def is_package(path: Path) -> bool:
    """Return whether a directory is a package of ours."""
    return _provenance(path) is not None


def _provenance(path: Path) -> Provenance | None:
    if not (path / abi.PROVENANCE_FILE).is_file():
        return None
    try:
        return Provenance.from_json(read_artifact(path / abi.PROVENANCE_FILE))
    except ArtifactError:
        return None


def check_output(output: Path, *, force: bool) -> None:
    """Raise UsageError if `output` holds something that a run must not replace."""
    _check_neighbours(output)
    if not os.path.lexists(output):
        return
    if output.is_symlink() or not output.is_dir():
        raise UsageError(f"`{output}` exists and is no directory", hint="choose another -o")
    if not force and any(output.iterdir()) and not is_package(output):
        raise UsageError(
            f"`{output}` exists and is no package of gemma4-compile",
            hint="choose another -o, or replace it with --force",
        )


def check_free(output: Path, names: Iterable[str]) -> None:
    """Raise UsageError if a file of such a name lies beside those of the package there.

    It is somebody's own, and would be replaced.
    """
    package = _provenance(output)
    own = set() if package is None else {*package.files, abi.PROVENANCE_FILE}
    for name in names:
        if name not in own and os.path.lexists(output / name):
            raise UsageError(
                f"`{name}` in `{output}` is none of the package's files, and would be replaced",
                hint="move it away, choose another -o, or replace all with --force",
            )


def _neighbours(output: Path) -> tuple[Path, Path]:
    """Directories in which a run works, and to which it moves the package that it replaces."""
    output = Path(os.path.abspath(output))
    return output.with_name(f".{output.name}.partial"), output.with_name(f".{output.name}.replaced")


def _check_neighbours(output: Path) -> None:
    """Raise ArtifactError if what is at those places was not made by a run of this user."""
    for path in _neighbours(output):
        if not os.path.lexists(path):
            continue
        removed = path.name.endswith("partial") or output.exists()
        try:
            regular_files.check_own_directory(path)
            if removed and not _is_of_a_run(path):
                raise OSError(errno.ENOTEMPTY, "it holds what no run has written")
        except FileNotFoundError:
            continue  # another run has just ended
        except OSError as error:
            raise ArtifactError(
                f"`{path}` is needed while `{output}` is written: {error.strerror}",
                hint="remove it if you know what it is, or choose another -o",
            ) from error


def _is_of_a_run(path: Path) -> bool:
    """Return whether a killed run left a directory: its lock is there, or a whole package."""
    return (path / LOCK_FILE).exists() or is_package(path) or not any(path.iterdir())


def check_place(output: Path, checkpoints: Iterable[Path] = ()) -> None:
    """Raise UsageError if `output`, which is replaced as a whole, holds what must stay.

    Parameters
    ----------
    checkpoints : where the model and its drafter are, if they are directories
    """
    try:
        str(output).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"-o `{output}`: the name is not UTF-8", hint="give another name"
        ) from error
    try:
        names.check_new_name(output)
        replaced = regular_files.resolved(output)
    except OSError as error:
        raise UsageError(f"-o `{output}`: {error.strerror}", hint="choose another -o") from error
    kept = {"the directory that you are in": Path.cwd()}
    with contextlib.suppress(RuntimeError):  # there is no home directory
        kept["your home directory"] = Path.home()
    kept |= {f"the checkpoint `{checkpoint}`": checkpoint for checkpoint in checkpoints}
    for what, path in kept.items():
        if path.exists() and files.is_below(path.resolve(), replaced):
            raise UsageError(
                f"-o `{output}` would replace {what}",
                hint="give -o a directory of its own, which is made where it is missing",
            )


def check_writable(output: Path) -> None:
    """Raise ArtifactError if `output`, a package, cannot be replaced, which is done next to it."""
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
            f"cannot write `{path}`: {error.strerror or error}{names.length_hint(path)}",
            hint=f"check the directory's permissions, or choose another {option}",
        ) from error


def _replace(partial: Path, output: Path, replaced: Path) -> None:
    if os.path.lexists(output):
        files.rename_folder(output, replaced)
    try:
        files.rename_folder(partial, output)
    except OSError:
        if os.path.lexists(replaced):
            files.rename_folder(replaced, output)
        raise
    (output / LOCK_FILE).unlink()  # now: until the rename, no other run may begin
    with contextlib.suppress(OSError):
        _remove(replaced)


def _keep_others(output: Path, partial: Path) -> None:
    """Link what lies in a package's directory and is none of its files: it is not ours to remove.

    What has a name of the new package's files gives way.
    """
    provenance = _provenance(output)
    if provenance is None:
        return
    own = {abi.PROVENANCE_FILE, *provenance.files}
    for source in output.iterdir():
        path = partial / source.name
        if source.name in own or os.path.lexists(path):
            continue
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, path, symlinks=True, copy_function=_link)
        else:
            _link(source, path)


def _link(source: str | Path, path: str | Path) -> None:
    try:
        files.link_file(Path(source), Path(path))
    except OSError:
        shutil.copy2(source, path, follow_symlinks=False)


def _remove(package: Path) -> None:
    """Remove a package that was replaced; what marks it as one goes last, after a kill too."""
    if package.exists():
        for path in package.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != abi.PROVENANCE_FILE:
                path.unlink()
        shutil.rmtree(package)


@contextlib.contextmanager
def output_directory(output: Path, *, force: bool, weights: bool = True) -> Iterator[Path]:
    """Yield the directory to write into; rename it to `output` when the block ends well.

    What lay beside the files of the package that is replaced lies beside those of the new one.
    After an error the directory is removed. After an interruption (or a kill) it stays if it holds
    finished shards, so that the same command can go on from them.

    Parameters
    ----------
    weights : this run writes shards, so those of an interrupted one are kept for it

    Raises
    ------
    UsageError
        If `output` exists and is neither empty nor one of our packages, unless `force`.
    ArtifactError
        If the directory cannot be made, something else is in its place, or another run is writing
        it.
    """
    output = Path(os.path.abspath(output))
    partial, replaced = _neighbours(output)
    check_output(output, force=force)
    made = _missing_parents(output)
    with write_errors(output):
        partial.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            partial.mkdir()
    _check_neighbours(output)
    with _unmade_after_errors(made), _locked(output, partial):
        try:
            with write_errors(output):
                if replaced.exists():  # a run was killed between two renames, or after them
                    if output.exists():
                        _remove(replaced)
                    else:
                        files.rename_folder(replaced, output)
                _remove_the_rest(partial, keep_shards=weights)
                if locks.OPEN_FILES_STAY and os.path.lexists(output):
                    _check_unused(output, replaced)
            yield partial
            with write_errors(output):
                if not force:
                    _keep_others(output, partial)
                _replace(partial, output, replaced)
        except BaseException as error:
            if not isinstance(error, Exception) and (partial / PROGRESS_FILE).exists():
                if isinstance(error, KeyboardInterrupt):
                    raise InterruptedRunError(_what_is_left(partial)) from error
                raise
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked(output: Path, partial: Path) -> Iterator[None]:
    """Keep other runs away; ArtifactError if there is one.

    The lock lies in the folder, which it marks as that of a run, and is renamed with it. Where an
    open file keeps folders from being renamed, the mark is closed, and the lock lies beside it.
    """
    mark = place = partial / LOCK_FILE
    with write_errors(mark):
        lock = regular_files.open_lock(mark)
        if locks.OPEN_FILES_STAY:
            lock.close()
            place = output.with_name(f".{output.name}{LOCK_FILE}")
            lock = regular_files.open_lock(place)
    with lock:
        if not is_locked(lock, place):
            raise ArtifactError(
                f"another run is writing `{output}`", hint="wait for it, or choose another -o"
            )
        try:
            yield
        finally:
            lock.close()
            if place != mark:
                with contextlib.suppress(OSError):  # the next run has opened it
                    place.unlink()


@contextlib.contextmanager
def _unmade_after_errors(folders: Iterable[Path]) -> Iterator[None]:
    """Remove those that are empty, innermost first."""
    try:
        yield
    except BaseException:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _check_unused(output: Path, replaced: Path) -> None:
    """ArtifactError if a program has files of a package open: it could not be replaced at the end.

    Of a run that is killed between the two, the next one moves the package back.
    """
    try:
        files.rename_folder(output, replaced)
        files.rename_folder(replaced, output)
    except PermissionError as error:
        raise ArtifactError(
            f"`{output}` cannot be replaced while a program has it open: {error.strerror}",
            hint="close the chat, the server or whatever else uses it, or choose another -o",
        ) from error


def _what_is_left(partial: Path) -> str:
    nbytes = sum(path.lstat().st_size for path in partial.iterdir())
    return (
        f"{nbytes / 2**20:.1f} MiB of finished weights are in {partial}: the same command goes on "
        f"from them; to delete them: rm -r {shlex.quote(str(partial))}"
    )


def is_locked(lock: IO[bytes], path: Path) -> bool:
    """Take the lock; False if another run has it, or had it and took the file away at its end."""
    try:
        locks.take(lock.fileno())
        return os.path.samestat(os.fstat(lock.fileno()), path.lstat())
    except OSError:
        return False


def _remove_the_rest(partial: Path, *, keep_shards: bool) -> None:
    """Remove what a killed run left, save the weights that it may have finished.

    A link to a file elsewhere, by name or by number (a hard link), is none of these.
    """
    for path in partial.iterdir():
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path)
            continue
        usable = path.name == PROGRESS_FILE or path.match(SHARD_PATTERN)
        usable = usable and stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if path.name != LOCK_FILE and not (keep_shards and usable):
            path.unlink()


def _missing_parents(path: Path) -> tuple[Path, ...]:
    """Directories above `path` that do not exist yet, innermost first."""
    return tuple(parent for parent in path.parents if not parent.exists())
