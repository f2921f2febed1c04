"""Compiled objects in the user's cache: an entry is used only if it is whole, bit for bit.

Next to each object is its sha256, written when it was compiled. A machine that loses power, a disk
that fills up or errs, or a person with an editor can leave anything under an entry's name.

An entry's name holds a hash of everything that its objects were made from. The same entries may
come with the package itself (`prebuilt/`, which `make wheel` fills).

What is linked is code that runs: the cache is a folder to which nobody else can write
(`cache_folder`), and a link takes copies, hashed as they were read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gemma4_compile.errors import TargetError
from gemma4_compile.system import files, locks
from gemma4_compile.system.cache_folder import WAY_OUT, UnsafeFolderError, own_cache_folder
from gemma4_compile.system.regular_files import (
    check_own_directory,
    open_lock,
    open_regular,
    read_regular,
)

logger = logging.getLogger(__name__)

PREBUILT = Path(__file__).parents[1] / "prebuilt"
_SUFFIX = ".sha256"
_BLOCK_BYTES = 1 << 20
_BUILD = "build-"
_LOCK = ".lock"
_ABANDONED_SECONDS = 3600.0
_IDLE_SECONDS = 15.0  # that another process may hold the cache without building
_WAIT_SECONDS = 1800.0  # while it builds
_POLL_SECONDS = 0.2
_MOST_BYTES = 1 << 30  # of an object or archive

Progress = Callable[[str], None]


def report(message: str, progress: Progress | None) -> None:
    """Tell what takes long: to `progress`, or else to the log."""
    if progress is not None:
        progress(message)
    else:
        logger.info(message)


def find_or_make(
    entry_name: str,
    names: Sequence[str],
    make: Callable[[Path, Path], None],
    progress: Progress | None = None,
) -> list[Path]:
    """Return an entry's objects, and make them if neither package nor cache holds them whole.

    The entry appears under its name only when it is complete. Of two processes that need it at the
    same time, one makes it and the other waits. A damaged entry is made again.

    Parameters
    ----------
    entry_name : holds a hash of everything that decides the objects
    names : the entry's files
    make : called with a folder for whatever it needs and a folder for the objects
    progress : is given what takes long; without it, messages go to the log

    Raises
    ------
    TargetError
        If `make` raises it, the cache directory cannot be written or is not safe, or another
        process holds it for too long.
    """
    prebuilt = PREBUILT / entry_name
    if _has_hashes(prebuilt, names):
        logger.debug("objects that came with the package: %s", prebuilt.name)
        return [prebuilt / name for name in names]
    try:
        entry = own_cache_folder() / entry_name
        if is_whole(entry, names):
            logger.debug("objects from the cache: %s", entry)
        else:
            logger.info("objects are not in the cache, and made: %s", entry)
            with _alone(entry.parent, progress):
                _make(entry, names, make, progress)
    except UnsafeFolderError as error:
        raise TargetError(
            f"the cache of compiled objects is not safe: {error.strerror}, and what is linked from "
            "it runs as you",
            hint=WAY_OUT,
        ) from error
    except OSError as error:
        raise TargetError(
            f"cannot write compiled objects of {entry_name}: {error.strerror or error}"
            + (f": {error.filename}" if error.filename else ""),
            hint="look at what is there, free some space, or set XDG_CACHE_HOME to another place",
        ) from error
    return [entry / name for name in names]


def copies(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Copy objects into a folder that is made; what was copied has the hash it was stored with.

    Raises
    ------
    TargetError
        If an object is not what was stored, or changes just now.
    """
    folder.mkdir()
    copied = []
    for path in paths:
        try:
            content = read_regular(path, _MOST_BYTES)
            stored = read_regular(path.with_name(f"{path.name}{_SUFFIX}"), 64)
        except OSError as error:
            raise TargetError(
                f"cannot read the compiled object {path}: {error.strerror}",
                hint="run again: what is damaged is compiled anew",
            ) from error
        if hashlib.sha256(content).hexdigest().encode() != stored:
            raise TargetError(
                f"the compiled object {path} has changed since it was checked",
                hint=f"look for what writes there, or {WAY_OUT}",
            )
        copied.append(folder / path.name)
        copied[-1].write_bytes(content)
    return copied


def _make(
    entry: Path,
    names: Sequence[str],
    make: Callable[[Path, Path], None],
    progress: Progress | None,
) -> None:
    if is_whole(entry, names):
        return  # by the process that this one waited for
    if entry.exists():
        report(f"the cache entry {entry} is damaged: compiling it again", progress)
    with files.scratch_folder(prefix=_BUILD, dir=entry.parent) as scratch:
        objects = Path(scratch, "objects")
        objects.mkdir()
        make(Path(scratch), objects)
        publish(objects, entry, names, Path(scratch))


@contextlib.contextmanager
def _alone(cache: Path, progress: Progress | None) -> Iterator[None]:
    """Keep other processes from building in a cache; they wait.

    Where a file system knows no locks, two processes may build the same: the first one's result
    stays.
    """
    descriptor = _open_to_lock(cache)
    try:
        _lock(descriptor, cache, progress)
        _remove_abandoned(cache)
        yield
    finally:
        os.close(descriptor)


def _open_to_lock(cache: Path) -> int:
    """The directory itself, so that no file is left; a file in it where only those have locks."""
    if not locks.OPEN_FILES_STAY:
        return os.open(cache, files.FOLDER)
    with open_lock(cache / _LOCK) as file:
        return os.dup(file.fileno())


def _lock(descriptor: int, cache: Path, progress: Progress | None) -> None:
    begin = idle = time.monotonic()
    is_told = False
    while True:
        try:
            locks.take(descriptor)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            logger.debug("no lock: %s", error)
            return
        if not is_told:
            report("waiting for another process, which builds for this machine's cache", progress)
            is_told = True
        now = time.monotonic()
        if any(cache.glob(f"{_BUILD}*")):
            idle = now
        if now - idle > _IDLE_SECONDS or now - begin > _WAIT_SECONDS:
            raise OSError(
                errno.EBUSY,
                f"another process holds the lock of `{cache}` and "
                + ("builds nothing" if now - idle > _IDLE_SECONDS else "does not come to an end"),
            )
        time.sleep(_POLL_SECONDS)


def _remove_abandoned(cache: Path) -> None:
    """Remove what processes left that were killed while they built."""
    for path in cache.glob(f"{_BUILD}*"):
        with contextlib.suppress(OSError):
            check_own_directory(path)
            if time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest().encode()


def is_whole(entry: Path, names: Sequence[str]) -> bool:
    """Return whether an entry is there and its objects have the hashes that they were stored with.

    Raises
    ------
    OSError
        If what is there is a link, a file or another user's: nothing of it is used or replaced.
    """
    if not os.path.lexists(entry):
        return False
    try:
        check_own_directory(entry)
    except OSError as error:
        error.filename = error.filename or str(entry)
        raise
    return _has_hashes(entry, names)


def _has_hashes(entry: Path, names: Sequence[str]) -> bool:
    try:
        return all(
            read_regular(entry / f"{name}{_SUFFIX}", 64) == _sha256(entry / name) for name in names
        )
    except OSError:
        return False


def publish(objects: Path, entry: Path, names: Sequence[str], scratch: Path) -> None:
    """Give a directory of objects its name in the cache, where it is whole whatever happens next.

    A damaged entry makes room; one that is whole stays: another process was faster, and its objects
    are as good.

    Parameters
    ----------
    scratch : a directory on the same disk, for what makes room
    """
    for name in names:
        (objects / f"{name}{_SUFFIX}").write_bytes(_sha256(objects / name))
    for path in (*objects.iterdir(), objects):
        files.sync(path)  # or the rename may reach the disk without the content
    if is_whole(entry, names):
        return
    if entry.is_dir():
        files.rename_folder(entry, scratch / "damaged")
    try:
        files.rename_folder(objects, entry)
    except OSError:
        if not is_whole(entry, names):
            raise
    files.sync(entry.parent)
