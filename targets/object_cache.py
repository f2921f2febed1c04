"""Compiled objects in the user's cache: an entry is used only if it is whole, bit for bit.

Beside each object lies its sha256, written when it was compiled. A machine that loses power, a disk
that fills up or errs, or a person with an editor can leave anything under an entry's name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile.regular_files import check_own_directory, open_regular, read_regular

_SUFFIX = ".sha256"
_BLOCK_BYTES = 1 << 20


def _sha256(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest().encode()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_whole(entry: Path, names: Sequence[str]) -> bool:
    """Whether an entry is there and its objects have the hashes that they were stored with.

    Raises
    ------
    OSError
        If what is there is a link, a file or another user's: nothing of it is used or replaced.
    """
    if not os.path.lexists(entry):
        return False
    check_own_directory(entry)
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
        _sync(path)  # or the rename may reach the disk without the content
    if is_whole(entry, names):
        return
    if entry.is_dir():
        entry.rename(scratch / "damaged")
    try:
        objects.rename(entry)
    except OSError:
        if not is_whole(entry, names):
            raise
    _sync(entry.parent)
