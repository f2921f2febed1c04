"""Files of `--dump-ir`: the module after each phase or pass, and the sources of the kernels."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.package.output_directory import write_errors
from gemma4_compile.system import regular_files
from gemma4_compile.system.files import replace_file

MARK = ".gemma4-dump"
"""File in every folder of dumps, by which the next run knows that it may be written anew."""
KERNELS = "kernels"
_OPTION = "--dump-ir"
_HALF = ".part"
_DUMPED = re.compile(rf"\d{{2,}}-[\w-]+\.py({_HALF})?")
_SOURCE = re.compile(rf"\w+\.(wgsl|metal|msl|cu)({_HALF})?")
_UNNAMED = re.compile(r"[^\w-]+")


def check_dump(directory: Path) -> None:
    """Raise UsageError if a folder holds what no dump has written."""
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir():
        raise UsageError(
            f"{_OPTION} `{directory}` exists and is no directory", hint=f"choose another {_OPTION}"
        )
    if any(directory.iterdir()) and not _is_dump(directory):
        raise UsageError(
            f"{_OPTION} `{directory}` exists and holds what is no dump of gemma4-compile",
            hint=f"choose another {_OPTION}: a folder that is empty, or that a run made",
        )


def begin_dump(directory: Path) -> None:
    """Make a folder for dumps, without the files of an earlier run; errors as `check_dump`.

    What else lies in it stays.
    """
    check_dump(directory)
    with write_errors(directory, _OPTION):
        directory.mkdir(parents=True, exist_ok=True)
        _mark(directory)
        for path in directory.iterdir():
            if _is_dump(path):  # of one of several libraries
                _remove_dumped(path)
        _remove_dumped(directory)


def _is_dump(directory: Path) -> bool:
    return not directory.is_symlink() and (directory / MARK).is_file()


def _mark(directory: Path) -> None:
    if not (directory / MARK).exists():
        regular_files.write_new(directory / MARK, b"")


def _remove_dumped(directory: Path) -> None:
    for folder, name in ((directory, _DUMPED), (directory / KERNELS, _SOURCE)):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            if name.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()


class Dump:
    """Files of `--dump-ir` in a directory, which is made when the first one is written.

    A file is there whole or not at all: it is written under another name.
    """

    def __init__(self, directory: Path, digits: int = 2) -> None:
        """Prepare; so many digits number the files, so that their names are in their order."""
        self._directory, self._digits, self._count = directory, digits, 0
        self._last = "", ""  # name and text of the last file that had one

    def phase(self, name: str, text: str) -> None:
        """Write the module's text after a phase or pass into a numbered file.

        Where it is as before, one line tells which file has it.
        """
        file = f"{self._count:0{self._digits}d}-{_UNNAMED.sub('_', name)}.py"
        before, known = self._last
        if text == known:
            content = f"# nothing changed: as in {before}\n"
        else:
            content, self._last = text, (file, text)
        self._write(self._directory / file, content)
        self._count += 1

    def kernel(self, file: str, text: str) -> None:
        """Write a kernel's source into `kernels/`."""
        self._write(self._directory / KERNELS / file, text)

    def _write(self, path: Path, text: str) -> None:
        half = path.with_name(path.name + _HALF)
        with write_errors(path, _OPTION):
            path.parent.mkdir(parents=True, exist_ok=True)
            _mark(self._directory)
            if os.path.lexists(path):
                regular_files.check_regular(path.lstat())
            try:
                regular_files.write_new(half, text.encode("utf-8"))
                replace_file(half, path)
            except BaseException:  # an interruption, too
                with contextlib.suppress(OSError):
                    half.unlink()
                raise
