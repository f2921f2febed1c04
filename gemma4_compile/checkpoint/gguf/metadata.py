"""Metadata of GGUF by key, each value checked where it is read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemma4_compile.checkpoint.gguf.header import Value
from gemma4_compile.errors import CheckpointError

_SHOWN = 80


class Metadata:
    """Values of one file; errors name the key, what was expected and what was found."""

    def __init__(self, values: Mapping[str, Value], file: str) -> None:
        self._values, self._file = values, file
        self.asked: set[str] = set()

    def wrong(self, key: str, expected: str, found: object) -> CheckpointError:
        """The error for a value that is not what was expected."""
        return CheckpointError(
            f"`{key}` of `{self._file}`: expected {expected}, found {str(found)[:_SHOWN]}",
            hint="convert the model again with a newer llama.cpp, or give its safetensors "
            "checkpoint",
        )

    def get(self, key: str) -> Value | None:
        """A value of any type; None where there is none."""
        self.asked.add(key)
        return self._values.get(key)

    def names(self, prefix: str) -> list[str]:
        """Keys that begin so."""
        return [key for key in self._values if key.startswith(prefix)]

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int:
            raise self.wrong(key, "an integer", value)
        return value

    def optional_integer(self, key: str) -> int | None:
        """An integer, if there is one."""
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A number, the shortest that is the same one in float32: 1e-06 was written as one."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is int:
            return float(value)
        if not isinstance(value, float):
            raise self.wrong(key, "a number", value)
        with np.errstate(over="ignore"):  # of a double
            single = np.float32(value)
        return float(str(single)) if float(single) == value else value

    def text(self, key: str) -> str | None:
        """A text, if there is one."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> list[str]:
        """Texts; none where there are none."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, "texts", value)
        return value

    def integers(self, key: str) -> list[int]:
        """Integers; none where there are none."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self.wrong(key, "integers", value)
        return [int(number) for number in value]

    def by_layer(self, key: str, count: int) -> list[int]:
        """An integer or a boolean of each layer; one that is there alone is of all of them."""
        value = self.get(key)
        if isinstance(value, int):  # a boolean is one
            return [int(value)] * count
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iub":
            raise self.wrong(key, "integers", value)
        if len(value) != count:
            raise self.wrong(key, f"one value for each of {count} layers", len(value))
        return [int(number) for number in value]
