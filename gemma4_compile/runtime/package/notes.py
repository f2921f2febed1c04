"""What this user's cache remembers of packages: small files, read and written through one folder.

Without a place to remember, or in one that others may write to, nothing is known and nothing is
kept: checks are made again. What somebody has put in a note's place is an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from gemma4_compile.errors import ArtifactError
from gemma4_compile.system.cache_folder import WAY_OUT, cache_folder, own_cache_folder
from gemma4_compile.system.folders import Folder, open_folder

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # of a pipe that nobody writes to
_NOTE = re.compile("[0-9a-f]{64}")


def read_note(kind: str, name: str, most_bytes: int) -> bytes | None:
    """A note, or None where there is none that can be trusted.

    Parameters
    ----------
    kind : the folder of its kind
    name : a sha256 in hexadecimal
    most_bytes : of its content; what is longer is cut

    Raises
    ------
    ArtifactError
        If a link, a directory or the like is in its place or in that of its folder.
    """
    with contextlib.suppress(OSError), _opened(kind) as folder, _planted(kind, name):
        note = folder.open(name, os.O_RDONLY | _NO_WAIT)
        with os.fdopen(note, "rb") as file:
            if not stat.S_ISREG(os.fstat(note).st_mode):
                raise OSError(errno.ELOOP, "no regular file")
            return file.read(most_bytes)
    return None


def write_note(kind: str, name: str, content: bytes, most_notes: int) -> None:
    """Keep a note, where that can be; of more than so many the older half goes.

    Parameters and errors are those of `read_note`.
    """
    with contextlib.suppress(OSError), _opened(kind) as folder:
        new = f".{secrets.token_hex(8)}"
        descriptor = folder.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        folder.replace(new, name)
        _forget_old(folder, most_notes)


def forget_note(kind: str, name: str) -> None:
    """Remove a note, where there is one; errors are those of `read_note`."""
    with contextlib.suppress(OSError), _opened(kind) as folder:
        folder.remove(name)


@contextlib.contextmanager
def _opened(kind: str) -> Iterator[Folder]:
    """A kind's folder, which is made where it is not."""
    with open_folder(own_cache_folder()) as cache, contextlib.ExitStack() as stack:
        with _planted(kind):
            folder = stack.enter_context(cache.inside(kind))
        yield folder


@contextlib.contextmanager
def _planted(*names: str) -> Iterator[None]:
    """ArtifactError for what is no file or folder of ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise
        raise ArtifactError(
            f"`{Path(cache_folder(), *names)}` is a link, or something else that this program has "
            "not put there",
            hint=f"remove it, or {WAY_OUT}",
        ) from error


def _forget_old(folder: Folder, most: int) -> None:
    """Keep the memory small: packages come and go."""
    notes = [name for name in folder.names() if _NOTE.fullmatch(name)]
    if len(notes) > most:
        notes.sort(key=folder.changed_ns)
        for name in notes[: len(notes) // 2]:
            folder.remove(name)
