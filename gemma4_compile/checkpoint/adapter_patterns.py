"""Patterns of modules' names in `adapter_config.json`, which anybody may have written.

An expression that could take long is not matched: of fields whose numbers are needed it is an
error, and of others the tensors say what was trained.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from gemma4_compile.checkpoint.kinds import ADAPTER_CONFIG, MERGE_HINT
from gemma4_compile.errors import CheckpointError

FoundT = TypeVar("FoundT")

_SHOWN_LETTERS = 80
_MAX_LETTERS, _MAX_QUANTIFIERS = 512, 3
_SECONDS = 20.0
_UNSAFE = re.compile(r"\)\s*[*+?{]|\(\?(?!:|<?[!=])|\\[1-9]")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_QUANTIFIER = re.compile(r"[*+{]|(?<!\()\?")  # not the one behind the parenthesis of a group


def is_quick(pattern: str) -> bool:
    """Return whether an expression matches a name in little time, whatever the name is."""
    count = len(_QUANTIFIER.findall(_ESCAPED.sub("a", pattern)))
    is_short = len(pattern) <= _MAX_LETTERS and count <= _MAX_QUANTIFIERS
    return is_short and not _UNSAFE.search(pattern)


def _too_long(field: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"`{field}` of `{ADAPTER_CONFIG}` may take long to match: {why}",
        hint=f"write the modules' names in place of patterns, or {MERGE_HINT}",
    )


def _compiled(field: str, given: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"`{field}` of `{ADAPTER_CONFIG}` has {given[:_SHOWN_LETTERS]!r}, which is no regular "
            f"expression: {error}",
            hint="save the adapter again with PEFT's save_pretrained",
        ) from error


class _Clock:
    """Matches within a time limit of all matches of a field together."""

    def __init__(self, field: str) -> None:
        self._field, self._spent = field, 0.0

    def timed(self, match: Callable[[], FoundT]) -> FoundT:
        """What a match finds; CheckpointError if matches took too long by now."""
        begin = time.monotonic()
        found = match()
        self._spent += time.monotonic() - begin
        if self._spent > _SECONDS:
            raise _too_long(self._field, "it took too long")
        return found


class WholeNames:
    """A regular expression that PEFT holds against modules' whole names; None fits none.

    One that could take long fits no name: then the tensors say what was trained.

    Attributes
    ----------
    holds : whether there is one that names are held against
    """

    def __init__(self, field: str, pattern: object) -> None:
        """Compile it; CheckpointError for a text that is no regular expression."""
        self._clock = _Clock(field)
        self._pattern: re.Pattern[str] | None = None
        if isinstance(pattern, str) and is_quick(pattern):
            self._pattern = _compiled(field, pattern, pattern)
        self.holds = self._pattern is not None

    def fit(self, module: str) -> bool:
        """Return whether a module's name fits; CheckpointError if that takes too long."""
        pattern = self._pattern
        return (
            pattern is not None and self._clock.timed(lambda: pattern.fullmatch(module)) is not None
        )


class Patterns:
    """Numbers by module: the first regular expression that fits a module's name, as PEFT has it.

    Anybody may have written the expressions. Most are names, which are looked up; of others those
    that could take long are refused, and matching has a time limit.
    """

    _MAX_PATTERNS = 256
    _NAME = re.compile(r"[\w.\-]+")

    def __init__(self, field: str, values: Mapping[str, float]) -> None:
        self._field, self._clock = field, _Clock(field)
        self._names: dict[str, tuple[int, float]] = {}
        self._patterns: list[tuple[int, re.Pattern[str], float]] = []
        for position, (key, value) in enumerate(values.items()):
            if self._NAME.fullmatch(key):
                self._names[key] = position, value
            else:
                self._patterns.append((position, self._compile(key), value))
        if len(self._patterns) > self._MAX_PATTERNS:
            raise _too_long(field, "there are too many patterns")

    def _compile(self, key: str) -> re.Pattern[str]:
        if not is_quick(key):
            raise _too_long(self._field, f"{key[:_SHOWN_LETTERS]!r}")
        return _compiled(self._field, key, rf"(.*\.)?({key})$")

    def of(self, module: str, default: float) -> float:
        """The number of a module; CheckpointError if that takes too long."""
        parts = module.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        found = [self._names[end] for end in ends if end in self._names]
        found += self._clock.timed(
            lambda: [(at, value) for at, key, value in self._patterns if key.match(module)]
        )
        return min(found)[1] if found else default
