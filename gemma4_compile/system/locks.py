"""Exclusive locks of open files and folders, which end with the process that holds them.

`filelock` opens a file by its name; here the file is one that was opened, and checked, before.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Protocol

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

OPEN_FILES_STAY = sys.platform == "win32"
"""An open file keeps its name, and the folders above it keep theirs, until it is closed."""

_HELD = (errno.EACCES, errno.EDEADLK, getattr(errno, "EDEADLOCK", errno.EDEADLK))


class ByteLocks(Protocol):
    """What is used of the module `msvcrt`."""

    LK_NBLCK: int

    def locking(self, fd: int, mode: int, nbytes: int, /) -> None:
        """Lock bytes from where a descriptor stands."""


def take(descriptor: int) -> None:
    """Take the lock of an open file.

    Raises
    ------
    BlockingIOError
        If another process has it.
    OSError
        If the file system knows no locks.
    """
    if sys.platform == "win32":
        take_byte(descriptor, msvcrt)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_byte(descriptor: int, locks: ByteLocks) -> None:
    """`take` on Windows, which locks bytes: the first one, which need not be there."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        locks.locking(descriptor, locks.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in _HELD:
            raise
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
