"""Checked reading of the fields of a request's JSON object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, TypeVar, overload

from gemma4_compile.errors import printable
from gemma4_compile.options.sampling_ranges import SamplingValueError, read_sampling
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.asks import Ask

T = TypeVar("T")

_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    list: "a list",
    dict: "an object",
}


_MOST_NAMES = 8  # of ignored fields that a note lists
_LONGEST_NAME = 60
_INDEX = re.compile(r"\[[0-9]+\]")


class Ignored:
    """Fields of one request that cannot change its reply, counted by name.

    Attributes
    ----------
    strict : refuse them instead
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._counts: dict[str, int] = {}
        self._others = 0

    def add(self, name: str) -> None:
        """Count one; the entries of a list share a name."""
        short = printable(_INDEX.sub("[]", name[: 4 * _LONGEST_NAME]))
        if len(short) > _LONGEST_NAME:
            short = f"{short[: _LONGEST_NAME - 3]}..."
        if short in self._counts or len(self._counts) < _MOST_NAMES:
            self._counts[short] = self._counts.get(short, 0) + 1
        else:
            self._others += 1

    def note(self) -> str | None:
        """What was ignored, in a line; None for nothing."""
        if not self._counts:
            return None
        names = [f"`{name}` ({count})" for name, count in self._counts.items()]
        names += [f"{self._others} more"] if self._others else []
        return f"ignored, as they mean nothing here: {', '.join(names)}"


class Fields:
    """One JSON object; `null` is the same as an absent field, as in OpenAI's API.

    An empty list in the place of an object within is an empty object, as programs in PHP write it.

    Attributes
    ----------
    ignored : where fields that mean nothing are counted; shared by all objects of a request
    """

    def __init__(self, values: object, path: str = "", ignored: Ignored | None = None) -> None:
        self._path = path
        self.ignored = ignored or Ignored()
        if values == [] and path and not self.ignored.strict:
            values = {}
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

    def inner(self, field: str, values: object) -> Fields:
        """The object `values`, which lies in a field of this one, or in an entry of it."""
        return Fields(values, self.name(field), self.ignored)

    def skip_unknown(self, known: Set[str], asks: Mapping[str, Ask]) -> None:
        """Ignore and count what is not known; ApiError for what asks for something.

        A strict request is refused for any of them.
        """
        for field, value in self._values.items():
            if field in known:
                continue
            ask = asks.get(field)
            if self.ignored.strict and (value is not None or ask is None):
                raise self.error(field, "is not a field of this endpoint", code="unknown_field")
            is_empty = value is None or value in ("", [], {})
            if is_empty and not (value is not None and ask is not None and ask.even_empty):
                continue
            if ask is None:
                self.ignored.add(self.name(field))
            elif ask.even_empty or value not in ask.neutral:
                found = f"{ask.why}; found {_shown(value)}"
                raise self.error(field, found, code="unsupported_value")

    def with_synonyms(self, synonyms: Mapping[str, str]) -> Fields:
        """The object with its fields by their own names; ApiError for two that differ."""
        if self.ignored.strict:
            return self
        values = dict(self._values)
        for other, field in synonyms.items():
            value, own = values.pop(other, None), values.get(field)
            if value is None:
                continue
            if own is not None and own != value:
                raise self.error(other, f"is another word for `{field}`, which says otherwise")
            values[field] = value
        return Fields(values, self._path, self.ignored)

    def names(self) -> list[str]:
        """Names of the fields that are there and not null."""
        return [field for field, value in self._values.items() if value is not None]

    def has(self, field: str) -> bool:
        """Return whether the field is there and not null."""
        return self._values.get(field) is not None

    def is_null(self, field: str) -> bool:
        """Return whether the field is there, but null."""
        return field in self._values and self._values[field] is None

    @overload
    def get(self, field: str, kind: type[T]) -> T | None: ...
    @overload
    def get(self, field: str, kind: type[T], default: T) -> T: ...
    def get(self, field: str, kind: type[T], default: T | None = None) -> T | None:
        """A value of this type, or the default."""
        value = self._values.get(field)
        if value is None:
            return default
        if kind is dict and value == [] and not self.ignored.strict:
            return kind()
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
        """An integer of a range; `60.0` is one, as clients write it whose numbers are doubles."""
        raw = self._values.get(field)
        given = int(raw) if isinstance(raw, float) and raw.is_integer() else self.get(field, int)
        value = default if given is None else given
        if value is not None and not lowest <= value <= highest:
            raise self.error(field, f"expected {lowest} to {highest}, found {_shown(value)}")
        return value

    def sampling(self, field: str, default: float, highest: float | None = None) -> Any:
        """A sampling parameter; its range is that of `gemma4_compile.options.sampling_ranges`."""
        value = self._values.get(field)
        if value is None:
            return default
        if field == "top_k" and value == -1:  # vLLM's way to leave every token in
            value = 0
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
