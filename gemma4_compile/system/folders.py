"""A folder that stays the same one while names in it are opened, made and removed.

POSIX holds a descriptor of it, so that nobody can exchange the folder in between. Windows opens no
folders: there it is known by its path, in the user's own part of the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gemma4_compile.system import files

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_CLOSED_FOR_CHILDREN = getattr(os, "O_CLOEXEC", 0)
_FLAGS = _NO_LINK | _BINARY | _CLOSED_FOR_CHILDREN


class Folder(Protocol):
    """A folder. No link is followed: OSError with ELOOP or ENOTDIR for one in a name's place."""

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file, which nobody else may read if it is made."""

    def replace(self, name: str, other: str) -> None:
        """Give a file another name, whose file goes."""

    def names(self) -> list[str]:
        """All names."""

    def changed_ns(self, name: str) -> int:
        """When a file was changed."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def inside(self, name: str) -> contextlib.AbstractContextManager[Folder]:
        """A folder of this one, which is made where there is none."""


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """Hold a folder."""
    if sys.platform == "win32":
        yield NamedFolder(path)
        return
    descriptor = os.open(path, files.FOLDER | _NO_LINK)
    try:
        yield HeldFolder(descriptor)
    finally:
        os.close(descriptor)


class HeldFolder:
    """A folder by a descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Take a descriptor, which the caller closes."""
        self._descriptor = descriptor

    def open(self, name: str, flags: int) -> int:
        """See `Folder`."""
        return os.open(name, flags | _FLAGS, 0o600, dir_fd=self._descriptor)

    def replace(self, name: str, other: str) -> None:
        """See `Folder`."""
        os.replace(name, other, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def names(self) -> list[str]:
        """See `Folder`."""
        return os.listdir(self._descriptor)

    def changed_ns(self, name: str) -> int:
        """See `Folder`."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime_ns

    def remove(self, name: str) -> None:
        """See `Folder`."""
        os.unlink(name, dir_fd=self._descriptor)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[Folder]:
        """See `Folder`."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._descriptor)
        descriptor = os.open(name, files.FOLDER | _NO_LINK, dir_fd=self._descriptor)
        try:
            yield HeldFolder(descriptor)
        finally:
            os.close(descriptor)


class NamedFolder:
    """A folder by its path, for Windows."""

    def __init__(self, path: Path) -> None:
        """Take the path of a folder."""
        self._path = path

    def open(self, name: str, flags: int) -> int:
        """See `Folder`."""
        path = self._path / name
        if os.path.lexists(path):
            self._check(path, stat.S_IFREG, errno.EISDIR)
        return os.open(path, flags | _FLAGS, 0o600)

    def replace(self, name: str, other: str) -> None:
        """See `Folder`."""
        files.replace_file(self._path / name, self._path / other)

    def names(self) -> list[str]:
        """See `Folder`."""
        return os.listdir(self._path)

    def changed_ns(self, name: str) -> int:
        """See `Folder`."""
        return (self._path / name).lstat().st_mtime_ns

    def remove(self, name: str) -> None:
        """See `Folder`."""
        (self._path / name).unlink()

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[Folder]:
        """See `Folder`."""
        path = self._path / name
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        self._check(path, stat.S_IFDIR, errno.ENOTDIR)
        yield NamedFolder(path)

    @staticmethod
    def _check(path: Path, kind: int, otherwise: int) -> None:
        found = stat.S_IFMT(path.lstat().st_mode)
        if found != kind:
            code = errno.ELOOP if found == stat.S_IFLNK else otherwise
            raise OSError(code, os.strerror(code), str(path))
