"""Where the launcher for Metal keeps compiled kernels between runs: files of the user's cache.

Such a file is what this process' own Metal has written, so it is taken only from a folder in which
nobody else can write, and only with the content that its name ends with.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path

from gemma4_compile.system.cache_folder import own_cache_folder
from gemma4_compile.system.files import scratch_folder

MOST_FILES = 8
"""Files that are kept: those of the packages that were compiled for last."""

_FOLDER = "metal-pipelines"
_DIGITS = 16


class KeptPipelines:
    """The file of a model library's kernels on this macOS."""

    def __init__(self, library: Path) -> None:
        """Take a library; OSError if it cannot be read or the cache is not the user's alone."""
        digest = hashlib.sha256(f"{platform.mac_ver()[0]}\0{platform.machine()}\0".encode())
        digest.update(library.read_bytes())
        self._name = digest.hexdigest()[:_DIGITS]
        self._folder = own_cache_folder() / _FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def find(self) -> Path | None:
        """The file, if there is one that is as it was written."""
        for path in self._folder.glob(f"{self._name}-*"):
            with contextlib.suppress(FileNotFoundError):  # another process has replaced it
                if path == self._path_of(path):
                    return path
                path.unlink()  # half-written, or damaged
        return None

    def save(self, write: Callable[[str], bool]) -> None:
        """Replace the file by what `write` puts at a path, if it does; OSError as any writing."""
        with scratch_folder(prefix=".new-", dir=self._folder) as scratch:
            new = Path(scratch, "pipelines")
            if not write(str(new)):
                return
            kept = self._path_of(new)
            for path in self._folder.glob(f"{self._name}-*"):
                path.unlink(missing_ok=True)  # another process may be faster
            os.replace(new, kept)
        files = sorted(self._folder.glob("[0-9a-f]*-*"), key=_changed_ns)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)

    def _path_of(self, file: Path) -> Path:
        content = hashlib.sha256(file.read_bytes()).hexdigest()[:_DIGITS]
        return self._folder / f"{self._name}-{content}"


def _changed_ns(path: Path) -> int:
    """When a file was written; 0 for one that is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0
