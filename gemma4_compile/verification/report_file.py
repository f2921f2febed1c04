"""The file of a report that is asked for by --output: written whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.package.output_directory import write_errors
from gemma4_compile.system.files import replace_file
from gemma4_compile.system.names import check_new_name
from gemma4_compile.system.regular_files import check_regular, write_new

OPTION = "--output"


def check_output(path: Path) -> None:
    """Raise UsageError for what cannot be written, before anything long begins."""
    try:
        check_new_name(path)
        try:
            check_regular(path.stat())
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
        writable = os.access(path.parent, os.W_OK)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(
            f"{OPTION}: cannot write `{path}`: {getattr(error, 'strerror', None) or error}",
            hint="give the name of a file in a directory that is there",
        ) from error
    if not writable:
        raise UsageError(
            f"{OPTION}: cannot write into `{path.parent}`", hint="give a file in another directory"
        )


def write_output(path: Path, text: str) -> None:
    """Write a file beside it and put it in its place; ArtifactError if that cannot be."""
    whole = path.resolve()  # of a link, what it leads to
    scratch = whole.with_name(f".{whole.name}.{os.getpid()}.partial")
    with write_errors(path, OPTION):
        try:
            write_new(scratch, text.encode("utf-8"))
            replace_file(scratch, whole)
        finally:
            scratch.unlink(missing_ok=True)
