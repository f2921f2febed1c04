"""Files whose names anybody may have planted: only regular ones are read, no link is written to.

A pipe or a device in the place of a file would never end, and a link would make a program read or
overwrite what it leads to. Every function raises OSError, whose `strerror` names what was found.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

MAX_JSON_BYTES = 16 << 20  # of a JSON or text file
MAX_TOKENIZER_BYTES = 128 << 20  # the released ones have 32 MB

# Windows has neither; its links need rights that few have.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # of opening a pipe that nobody writes to
_BINARY = getattr(os, "O_BINARY", 0)
_CLOSED_FOR_CHILDREN = getattr(os, "O_CLOEXEC", 0)
_FLAGS = _NO_WAIT | _BINARY | _CLOSED_FOR_CHILDREN

_KINDS = (
    (stat.S_ISLNK, "link"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
)


def check_regular(found: os.stat_result) -> None:
    """Raise OSError if a file is anything else than a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((word for is_kind, word in _KINDS if is_kind(found.st_mode)), "device")
        raise OSError(errno.EINVAL, f"it is no regular file, but a {kind}")


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, behind a link as well; OSError for anything else."""
    check_regular(path.stat())  # first: to open a device may do something
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        check_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """Read a regular file whole; OSError for anything else, and for one above the limit."""
    with open_regular(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is too large: more than {limit_bytes} bytes")
    return content


def read_stream(path: Path, limit_bytes: int) -> bytes:
    """Read a file of the user's choice, a pipe or a device as well, up to its end.

    OSError for a directory, for more than the limit, and for a pipe that nobody writes to.
    """
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if hasattr(os, "set_blocking"):
            os.set_blocking(descriptor, True)
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is too large: more than {limit_bytes} bytes")
    if not content and stat.S_ISFIFO(found.st_mode):
        raise OSError(errno.EPIPE, "it is a pipe to which nobody writes")
    return content


def open_new(path: Path, *, exclusive: bool = False) -> BinaryIO:
    """Make a file and open it for reading and writing; one that is there before is replaced.

    A file that was there keeps its content under its other names: it is removed, never cut off.
    With `exclusive`, there must be none. OSError for what is there and is no regular file.
    """
    if not exclusive:
        try:
            check_regular(path.lstat())
            path.unlink()
        except FileNotFoundError:
            pass
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _FLAGS
    return os.fdopen(os.open(path, flags, 0o666), "w+b", buffering=0)


def open_lock(path: Path) -> BinaryIO:
    """Open a file, whose content is nothing, or make it; OSError for what is no regular file."""
    if os.path.lexists(path):
        check_regular(path.lstat())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | _FLAGS, 0o666)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        check_regular(os.fstat(descriptor))
    except OSError:
        file.close()
        raise
    return file


def write_new(path: Path, content: bytes) -> None:
    """Write a file as `open_new` makes it."""
    with open_new(path) as file:
        write_all(file, content)


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to a file of `open_new`, which writes less at once where a disk fills up."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def check_own_directory(path: Path) -> None:
    """Raise OSError for a link, for what is no directory, and for another user's directory."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "no directory"
        raise OSError(errno.ENOTDIR, f"it is {what}")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")


def resolved(path: Path) -> Path:
    """The path without links; OSError for links in a circle. The file need not be there."""
    try:
        real = path.resolve()
        path.stat()  # from Python 3.13 on, a circle is found here alone
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        return Path(os.path.realpath(path))
    return real


def check_inside(path: Path, root: Path | None = None) -> None:
    """Raise OSError for a link that leads out of its directory, or of `root` above it.

    A link may stay in the directory, or lead from a snapshot of the hub's cache, or a folder in it,
    to its blobs. One that leads elsewhere could put a file of this machine into a package.
    """
    real, directory = resolved(path), resolved(root or path.parent)
    in_cache = any(
        folder.name == "snapshots" and real.is_relative_to(folder.parent / "blobs")
        for folder in directory.parents[:2]
    )
    if not in_cache and not real.is_relative_to(directory):
        raise OSError(errno.EPERM, f"it is a link that leads out of `{root or path.parent}`")


def gguf_in(path: Path) -> Path | None:
    """The file of llama.cpp that a path names, or that is in a directory without a config.json."""
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    return min((each for each in path.iterdir() if each.suffix.lower() == ".gguf"), default=None)
