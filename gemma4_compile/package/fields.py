"""Checked reading of the JSON objects of a package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from gemma4_compile.errors import ArtifactError

COMPILE_AGAIN = "compile the package again"
PLAIN_NAME = re.compile(
    r"(?!(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|\Z))\w([\w.\-]*[\w\-])?", re.ASCII | re.IGNORECASE
)
"""Of a file that every system can make; see `system.names`."""

T = TypeVar("T")


class Fields:
    """Checked reading of one JSON object of a package."""

    def __init__(self, values: object, file: str, name: str = "records") -> None:
        """Take an object of the field `name`; ArtifactError for anything else."""
        self._file = file
        if not isinstance(values, Mapping):
            raise self.damaged(name)
        self._values = values

    def damaged(self, name: str) -> ArtifactError:
        """The error for a field of that name."""
        return ArtifactError(f"`{self._file}`: field `{name}` is damaged", hint=COMPILE_AGAIN)

    def get(self, name: str, kind: type[T]) -> T:
        """A field's value; ArtifactError if it is missing or of another type."""
        value = self._values.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.damaged(name)
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """A field that may be missing or null; ArtifactError if it is of another type."""
        return None if self._values.get(name) is None else self.get(name, kind)

    def flag(self, name: str) -> bool:
        """A field that is true or missing; ArtifactError for anything else."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self.damaged(name)
        return value

    def size(self, name: str) -> int:
        """A positive integer; ArtifactError if it is none."""
        value: int = self.get(name, int)
        if value < 1:
            raise self.damaged(name)
        return value
