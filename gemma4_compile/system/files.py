"""Reading and writing at an offset, renaming, linking, and waiting for the disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

if sys.platform == "darwin":
    import fcntl

_TRIES = 20
_PAUSE_SECONDS = 0.1
_BINARY = getattr(os, "O_BINARY", 0)
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags that open a folder; on Windows none can be opened."""

Rename = Callable[[Path, Path], object]


def is_below(path: Path, folder: Path) -> bool:
    """Return whether a folder is a path, or above it: also where only the spelling differs.

    Most disks of Macs and Windows take a name in large and small letters, and in either form of
    letters with accents, for the same.
    """
    if path.is_relative_to(folder):
        return True
    try:
        found = folder.stat()
    except OSError:
        return False
    return any(
        os.path.samestat(found, above.stat()) for above in (path, *path.parents) if above.exists()
    )


class Control(Protocol):
    """What is used of the module `fcntl` on macOS."""

    F_FULLFSYNC: int

    def fcntl(self, fd: int, cmd: int, /) -> object:
        """Ask something of an open file."""


class ShortNames(Protocol):
    """What is used of kernel32.dll."""

    @property
    def GetShortPathNameW(self) -> Callable[..., int]:
        """Write a path's second form; its length, or 0 if it has none."""


def read_at(descriptor: int, count: int, offset_bytes: int) -> bytes:
    """Read so many bytes or fewer. On Windows the descriptor must be this thread's alone."""
    if sys.platform == "win32":
        return seek_and_read(descriptor, count, offset_bytes)
    return os.pread(descriptor, count, offset_bytes)


def write_at(descriptor: int, content: memoryview | bytes, offset_bytes: int) -> int:
    """Write, and return how many bytes were. On Windows the descriptor must be this thread's."""
    if sys.platform == "win32":
        return seek_and_write(descriptor, content, offset_bytes)
    return os.pwrite(descriptor, content, offset_bytes)


def seek_and_read(descriptor: int, count: int, offset_bytes: int) -> bytes:
    """`read_at` where there is no such call; the descriptor stands where it stood, after it."""
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset_bytes, os.SEEK_SET)
    try:
        return os.read(descriptor, count)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def seek_and_write(descriptor: int, content: memoryview | bytes, offset_bytes: int) -> int:
    """`write_at` where there is no such call."""
    os.lseek(descriptor, offset_bytes, os.SEEK_SET)
    return os.write(descriptor, content)


def scratch_folder(prefix: str, dir: str | Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed at the end; on Windows what of it is still open or mapped stays."""
    return tempfile.TemporaryDirectory(
        prefix=prefix, dir=dir, ignore_cleanup_errors=sys.platform == "win32"
    )


def point_to(source: Path, path: Path) -> None:
    """Make a link to a file or, where there may be none (Windows), a second name or a copy."""
    try:
        path.symlink_to(source)
    except OSError:
        try:
            link_file(source, path)
        except OSError:
            shutil.copy2(source, path)


def replace_file(source: Path, target: Path) -> None:
    """Give a file another name, whose file goes."""
    again_while_open(os.replace, source, target, _TRIES if sys.platform == "win32" else 1)


def rename_folder(source: Path, target: Path) -> None:
    """Give a folder another name, which is free."""
    again_while_open(os.rename, source, target, _TRIES if sys.platform == "win32" else 1)


def again_while_open(change: Rename, source: Path, target: Path, tries: int) -> None:
    """Rename, on Windows more than once: virus scanners and indexers open what is new there.

    Raises
    ------
    OSError
        The last one: PermissionError where a file is still open.
    """
    for _ in range(tries - 1):
        with contextlib.suppress(PermissionError):
            change(source, target)
            return
        time.sleep(_PAUSE_SECONDS)
    change(source, target)


def link_file(source: Path, path: Path) -> None:
    """Give a file a second name; OSError where that cannot be. A link itself, where that can be."""
    if os.link in os.supports_follow_symlinks:
        os.link(source, path, follow_symlinks=False)
    else:
        os.link(source, path)


def find_libraries_in(folder: Path) -> None:
    """Let libraries that are loaded from now on find others in a folder, if it is there.

    Wheels for Windows have Microsoft's C++ runtime in a folder of its own; elsewhere a library
    itself says where to look.
    """
    if sys.platform == "win32" and folder.is_dir():
        os.add_dll_directory(str(folder))


def path_for_tvm(path: Path) -> str:
    """The path of a library as TVM loads it.

    Raises
    ------
    OSError
        If TVM cannot be told of it.
    """
    if sys.platform == "win32":
        return plain_path(str(path.absolute()), ctypes.WinDLL("kernel32"))
    return str(path.absolute())


def plain_path(path: str, kernel32: ShortNames) -> str:
    """`path_for_tvm` on Windows, where TVM's loader takes each byte of UTF-8 for a letter.

    Most disks there keep a second name of every file, of ASCII alone.
    """
    if path.isascii():
        return path
    most = 32_768  # characters of a path
    buffer = ctypes.create_unicode_buffer(most)
    found = kernel32.GetShortPathNameW(ctypes.c_wchar_p(path), buffer, ctypes.c_uint32(most))
    if not 0 < found < most or not buffer.value.isascii():
        raise OSError(
            errno.EILSEQ, "TVM for Windows loads no library from a path with such letters"
        )
    return buffer.value


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if sys.platform == "win32":
        sync_writable(path)
        return
    _sync(path, os.O_RDONLY)


def sync_writable(path: Path) -> None:
    """`sync` on Windows: a file must be writable for that, and folders cannot be opened."""
    if not path.is_dir():
        _sync(path, os.O_RDWR | _BINARY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        force(descriptor)
    finally:
        os.close(descriptor)


def force(descriptor: int) -> None:
    """Write what the system has of a file to the disk."""
    if sys.platform == "darwin":
        force_through(descriptor, fcntl)
    else:
        os.fsync(descriptor)


def force_through(descriptor: int, control: Control) -> None:
    """`force` on macOS, whose `fsync` ends when the disk has the data in a memory that it loses."""
    try:
        control.fcntl(descriptor, control.F_FULLFSYNC)
    except OSError:  # a file system that knows no such request
        os.fsync(descriptor)
