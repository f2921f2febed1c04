"""GGUF files of one model: a file, its parts, or those of a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from gemma4_compile.checkpoint.files import check_place
from gemma4_compile.checkpoint.kinds import INDEX_FILE, SINGLE_FILE
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.system import regular_files

SUFFIX = ".gguf"
MAGIC = b"GGUF"
MAX_PARTS = 256
_MAX_FILES = 4096  # of a folder that are looked at
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_TOWERS = "mmproj"  # what the names of files with towers alone begin with
_SHOWN, _SHOWN_LETTERS = 5, 120


def is_model(path: Path) -> bool:
    """Return whether a file is GGUF, or a folder has weights in GGUF alone.

    A file is known by how it begins, as Ollama's have no suffix; one with the suffix is taken for
    one, so that what is wrong with it is said.
    """
    if path.is_dir():
        names = _names(path)
        others = (SINGLE_FILE, INDEX_FILE)
        return any(_is_weights(name) for name in names) and not any(
            name in others or name.endswith(".safetensors") for name in names
        )
    return path.is_file() and (path.name.lower().endswith(SUFFIX) or _begins(path))


def _begins(path: Path) -> bool:
    try:
        with regular_files.open_regular(path) as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def _names(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = (entry.name for _, entry in zip(range(_MAX_FILES), entries, strict=False))
            return sorted(names)
    except OSError as error:
        raise CheckpointError(f"cannot read `{path}`: {error.strerror}") from error


def _is_weights(name: str) -> bool:
    return name.lower().endswith(SUFFIX) and not name.lower().startswith(_TOWERS)


def towers_beside(path: Path) -> str | None:
    """The file of a folder that has towers alone; None where there is none."""
    names = _names(path) if path.is_dir() else []
    found = (n for n in names if n.lower().endswith(SUFFIX) and n.lower().startswith(_TOWERS))
    return next(found, None)


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of a model, in order: one, or its parts.

    Raises
    ------
    CheckpointError
        If a folder has several models, or a part is missing.
    """
    first = path
    if path.is_dir():
        first = path / _only(path, [name for name in _names(path) if _is_weights(name)])
    found = _PART.fullmatch(first.name)
    if found is None:
        _check_places(path, (first,))
        return (first,)
    count = int(found["count"])
    if not 0 < count <= MAX_PARTS:
        raise CheckpointError(f"`{first.name}` is one of {count} parts, at most {MAX_PARTS}")
    parts = tuple(
        first.with_name(f"{found['stem']}-{index:05d}-of-{found['count']}{first.suffix}")
        for index in range(1, count + 1)
    )
    missing = [part for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"`{missing[0].name}` is missing beside `{first.name}` ({len(missing)} of {count} "
            "parts are)",
            hint="download all parts into one folder",
        )
    _check_places(path, parts)
    return parts


def _check_places(path: Path, parts: Iterable[Path]) -> None:
    """Refuse links that lead out of a folder; a file that is given may be one."""
    for part in parts if path.is_dir() else ():
        check_place(part)


def _only(path: Path, names: Iterable[str]) -> str:
    """The one model of a folder, by the first of its parts."""
    models: dict[str, str] = {}
    for name in names:
        part = _PART.fullmatch(name)
        models.setdefault(name if part is None else f"{part['stem']} {part['count']}", name)
    first, *others = models.values()
    if others:
        shown = ", ".join(f"`{printable(n[:_SHOWN_LETTERS])}`" for n in (first, *others)[:_SHOWN])
        raise CheckpointError(
            f"`{path}` has {len(models)} models in GGUF: {shown}"
            + (" and others" if models.keys() and len(models) > _SHOWN else ""),
            hint="give one of the files",
        )
    return first
