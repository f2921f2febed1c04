"""The path that a model's name would be."""

from __future__ import annotations

from pathlib import Path


def local_path(model: str) -> Path:
    """The path that a model's name would be; the home directory of nobody is a name like others."""
    path = Path(model)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
