"""Checked reading of the fields of a request's JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeVar, overload

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.sampling_ranges import SamplingValueError, read_sampling

T = TypeVar("T")

_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    list: "a list",
    dict: "an object",
}


class Fields:
    """One JSON object; `null` is the same as an absent field, as in OpenAI's API."""

    def __init__(self, values: object, path: str = "") -> None:
        self._path = path
        if not isinstance(values, Mapping):
            found = f"{path or 'the body'}: expected an object, found {_shown(values)}"
            raise ApiError(400, found, param=path or None)
        self._values = values

    def name(self, field: str) -> str:
        """The field's full name, for messages."""
        return f"{self._path}.{field}" if self._path else field

    def error(self, field: str, message: str, *, code: str | None = None) -> ApiError:
        """A 400 that blames a field."""
        name = self.name(field)
        return ApiError(400, f"`{name}`: {message}", param=name, code=code)

    def refuse_unknown(self, known: Set[str]) -> None:
        """ApiError for a field that is not known: it would be ignored without a word."""
        for field in self._values:
            if field not in known:
                raise self.error(
                    str(field), "is not a field of this endpoint", code="unknown_field"
                )

    def has(self, field: str) -> bool:
        """Return whether the field is there and not null."""
        return self._values.get(field) is not None

    @overload
    def get(self, field: str, kind: type[T]) -> T | None: ...
    @overload
    def get(self, field: str, kind: type[T], default: T) -> T: ...
    def get(self, field: str, kind: type[T], default: T | None = None) -> T | None:
        """A value of this type, or the default."""
        value = self._values.get(field)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(field, f"expected {_NAMES[kind]}, found {_shown(value)}")
        return value

    def raw(self, field: str) -> object:
        """The value as it is, or None."""
        return self._values.get(field)

    def need(self, field: str, kind: type[T]) -> T:
        """A value that must be there."""
        if not self.has(field):
            raise self.error(field, "is missing", code="missing_field")
        value = self.get(field, kind)
        assert value is not None, "seen above"
        return value

    @overload
    def integer(self, field: str, lowest: int, highest: int, default: int) -> int: ...
    @overload
    def integer(self, field: str, lowest: int, highest: int, default: int | None) -> int | None: ...
    def integer(self, field: str, lowest: int, highest: int, default: int | None) -> int | None:
        """An integer of a range."""
        given = self.get(field, int)
        value = default if given is None else given
        if value is not None and not lowest <= value <= highest:
            raise self.error(field, f"expected {lowest} to {highest}, found {_shown(value)}")
        return value

    def sampling(self, field: str, default: float, highest: float | None = None) -> Any:
        """A sampling parameter; its range is that of `gemma4_compile.sampling_ranges`."""
        value = self._values.get(field)
        if value is None:
            return default
        try:
            return read_sampling(field, value, highest)
        except SamplingValueError as error:
            raise self.error(field, str(error)) from error

    def only(self, field: str, allowed: tuple[object, ...], why: str) -> None:
        """ApiError if the field is there with a value that is not served."""
        value = self._values.get(field)
        if value is not None and value not in allowed:
            raise self.error(field, f"{why}; found {_shown(value)}", code="unsupported_value")


def _shown(value: object) -> str:
    """A value for a message, not longer than a line."""
    if isinstance(value, (list, dict)):
        return f"{_NAMES[type(value)]} of {len(value)}" if value else repr(value)
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
