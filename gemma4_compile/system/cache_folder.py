"""The user's cache folder, in which nobody else can put, change or exchange anything.

What lies in it is linked into programs, and spares checks. So it is used only if no other user can
write to it or to a folder on the way to it, where an entry could be exchanged whatever its own
permissions are. Every function raises OSError, whose `strerror` names the path and what is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

if sys.platform != "win32":
    import grp
    import pwd

_NAME = "gemma4_compile"
_MOST_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
WAY_OUT = "set XDG_CACHE_HOME to a folder of yours that nobody else can write to"


class UnsafeFolderError(OSError):
    """Another user can write to the folder, or could exchange it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, f"`{path}` {why}")


def cache_folder() -> Path:
    """Where it is: in $XDG_CACHE_HOME or the system's caches."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"], _NAME)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "this user has no home directory") from error
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / _NAME
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home), _NAME, "Cache")
    return home / ".cache" / _NAME


def own_cache_folder() -> Path:
    """Make the folder where it is not, of mode 0700, and return its path without links."""
    path = cache_folder().absolute()
    if sys.platform == "win32":
        path.mkdir(parents=True, exist_ok=True)
        return path
    found = _walk(path)
    status = found.lstat()
    if status.st_uid != os.geteuid():
        raise UnsafeFolderError(found, "belongs to another user")
    if status.st_mode & _OTHERS and not _is_alone(found, status):
        raise UnsafeFolderError(found, "could be written to by others: remove it")
    if status.st_mode & 0o077:
        with contextlib.suppress(OSError):  # of a disk that can only be read
            found.chmod(0o700)
    return found


def _walk(path: Path) -> Path:
    """Follow a path, and make what is missing; UnsafeFolderError for the first step to fear."""
    current, links = Path(path.anchor), 0
    _check_folder(current, current.lstat())
    steps = list(reversed(path.parts[1:]))
    while steps:
        name = steps.pop()
        if name == os.pardir:
            current = current.parent
            continue
        step = current / name
        try:
            found = step.lstat()
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process of ours was faster
                step.mkdir(0o700)
            found = step.lstat()
        if stat.S_ISLNK(found.st_mode):
            if not _is_trusted(found.st_uid):
                raise UnsafeFolderError(step, "is a link of another user")
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, f"`{path}` is a link that leads to itself")
            target = Path(os.readlink(step))
            if target.is_absolute():
                current = Path(target.anchor)
            steps += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        _check_folder(step, found)
        current = step
    return current


def _check_folder(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, f"`{path}` is no directory")
    if not _is_trusted(found.st_uid):
        raise UnsafeFolderError(path, "belongs to another user")
    # In a folder with the sticky bit, as /tmp, nobody else can exchange what is ours.
    if found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX and not _is_alone(path, found):
        raise UnsafeFolderError(path, "can be written to by others")


def _is_trusted(uid: int) -> bool:
    """Return whether a user is this one, or root, who can do all anyway.

    So can the owner of the root directory, which in a container without root's rights is a user
    that has no number there.
    """
    if sys.platform == "win32":
        return True
    return uid in (0, os.geteuid(), os.lstat("/").st_uid)


def _is_alone(path: Path, found: os.stat_result) -> bool:
    """Return whether a folder's group, which alone may write to it, has no other member.

    Many systems give every user a group of the same name, and folders that it may write to.
    """
    if found.st_mode & stat.S_IWOTH or _has_access_list(path):
        return False
    if sys.platform == "win32":
        return False
    else:
        try:
            group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
        except KeyError:
            return False
        return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: Path) -> bool:
    """Return whether a list names users who may do something here; the mode shows no names."""
    if sys.platform != "linux":
        return False
    try:
        return bool(os.getxattr(path, "system.posix_acl_access", follow_symlinks=False))
    except OSError:  # there is none, or the disk knows of none
        return False
