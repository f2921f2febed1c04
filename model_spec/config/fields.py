"""Typed reading of one JSON object of `config.json`: every error names its key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.keys import NULL_IS_DEFAULT

MAX_TOKEN_IDS = 256  # of one key; the released configs have up to 3


def is_integer_of_64_bits(value: object) -> bool:
    """Return whether torch could hold it; booleans are no integers here."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


class ConfigFields:
    """One JSON object of a config, with the path that leads to it.

    Each read marks its key as known; :meth:`refuse_unknown` names what nobody read. Booleans are
    not integers here, and floats are not integers even when they are whole.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        path: str,
        defaults: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._values = values
        self._defaults = defaults
        self._path = path
        self._read: set[str] = set()

    def key(self, name: str) -> str:
        """The full, dotted name of a key, for messages."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> object:
        """The value as it is, None when it is absent."""
        self._read.add(name)
        return self._values.get(name)

    def has_default(self, name: str) -> bool:
        """Return whether the key may be absent."""
        return name in self._defaults

    def is_null(self, name: str) -> bool:
        """Return whether the key is there, without a value."""
        self._read.add(name)
        return name in self._values and self._values[name] is None

    def require(self, name: str) -> object:
        """The value, or its default; ConfigError when the key is absent and has none."""
        absent = name not in self._values or (name in NULL_IS_DEFAULT and self.is_null(name))
        self._read.add(name)
        if absent and name in self._defaults:
            return self._defaults[name]
        if name not in self._values:
            raise ConfigError(
                f"config key `{self.key(name)}` is missing",
                hint="the checkpoint's config.json must describe the whole architecture",
            )
        return self._values[name]

    def _wrong(self, name: str, expected: str, found: object) -> ConfigError:
        text = repr(found)
        if len(text) > 60:
            text = text[:57] + "..."
        return ConfigError(f"config key `{self.key(name)}`: expected {expected}, found {text}")

    def integer(self, name: str, low: int, high: int) -> int:
        """A required integer in [low, high]."""
        value = self.require(name)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, f"an integer from {low} to {high}", value)
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """An integer in [low, high], or None when the key is absent or null."""
        return None if self.get(name) is None else self.integer(name, low, high)

    def number(self, name: str, low: float, high: float) -> float:
        """A required finite number in (low, high]."""
        value = self.require(name)
        # The bounds are finite, so that they refuse what is not; huge integers never become floats.
        if not isinstance(value, int | float) or isinstance(value, bool) or not low < value <= high:
            raise self._wrong(name, f"a number above {low:g}, at most {high:g}", value)
        return float(value)

    def boolean(self, name: str) -> bool:
        """A required boolean."""
        value = self.require(name)
        if type(value) is not bool:
            raise self._wrong(name, "true or false", value)
        return value

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """A required string out of a list."""
        value = self.require(name)
        if not isinstance(value, str) or value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}", value)
        return value

    def fixed(self, name: str, expected: object) -> None:
        """An optional key that must have this one value, which is also transformers' default."""
        if name in self._values and self.require(name) != expected:
            raise self._wrong(name, repr(expected), self._values[name])

    def array(self, name: str, length: int) -> list[object]:
        """A required list of `length` items."""
        value = self.require(name)
        if not isinstance(value, list) or len(value) != length:
            found = f"{len(value)} items" if isinstance(value, list) else value
            raise self._wrong(name, f"a list of {length} items", found)
        return value

    def fields(
        self, name: str, defaults: Mapping[str, object] = MappingProxyType({})
    ) -> ConfigFields:
        """A required JSON object, whose keys have these defaults."""
        value = self.require(name)
        if not isinstance(value, Mapping):
            raise self._wrong(name, "a JSON object", value)
        return ConfigFields(value, self.key(name), defaults)

    def names(self) -> tuple[str, ...]:
        """The keys of the object, as they stand."""
        return tuple(self._values)

    def token_id(self, name: str, vocab_size: int) -> int:
        """A required token id below `vocab_size`."""
        return self.integer(name, 0, vocab_size - 1)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A required token id or list of up to MAX_TOKEN_IDS; each counts once.

        They may be of no token (-1, or beyond a vocabulary that was cut), as transformers has it.
        """
        value = self.require(name)
        ids = value if isinstance(value, list) else [value]
        if len(ids) > MAX_TOKEN_IDS:
            raise self._wrong(name, f"up to {MAX_TOKEN_IDS} token ids", f"{len(ids)} of them")
        if not all(is_integer_of_64_bits(item) for item in ids):
            raise self._wrong(name, "token ids", value)
        return tuple(dict.fromkeys(ids))

    def media_token(
        self, names: tuple[str, ...], default: int, vocab_size: int, modality: str
    ) -> int:
        """A token that stands around or in the place of a medium, by the first name that is given.

        Raises
        ------
        ConfigError
            If it is no token of the vocabulary.
        """
        given = [(name, self._values[name]) for name in names if self.get(name) is not None]
        for name in names:
            self.get(name)  # known keys
        name, found = given[0] if given else (names[0], default)
        if type(found) is int and 0 <= found < vocab_size:
            return found
        if type(found) is not int:
            raise self._wrong(name, f"an integer from 0 to {vocab_size - 1}", found)
        raise ConfigError(
            f"config key `{self.key(name)}`{':' if given else ' is missing: its default'} "
            f"{str(found)[:40]} is outside of the vocabulary of {vocab_size} tokens",
            hint="save config and tokenizer again from the run that trained the model, or leave "
            f"`{modality}` out of --modalities",
        )

    def unknown(self, ignored: Mapping[str, str]) -> list[str]:
        """Full names of the keys that are neither read nor listed in `ignored`."""
        return [
            self.key(str(name))
            for name in self._values
            if name not in self._read and name not in ignored
        ]

    def refuse_unknown(self, ignored: Mapping[str, str]) -> None:
        """Raise ConfigError for the first key that is neither read nor listed in `ignored`."""
        for name in self.unknown(ignored):
            raise ConfigError(
                f"config key `{name}` is unknown",
                hint="the checkpoint may be of a newer or another architecture than Gemma 4",
            )
