"""Patterns of modules' names in `adapter_config.json`, which anybody may have written.

`NamePattern` holds them against names in bounded work. An expression that it does not read is an
error of fields whose numbers are needed; of others the tensors say what was trained.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from gemma4_compile.checkpoint.kinds import ADAPTER_CONFIG, MERGE_HINT
from gemma4_compile.checkpoint.name_pattern import (
    LONGEST_NAME,
    MatchClock,
    NamePattern,
    TooMuchWork,
    UnreadPattern,
)
from gemma4_compile.errors import CheckpointError

_SHOWN_LETTERS = 80


def _too_long(field: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"`{field}` of `{ADAPTER_CONFIG}` may take long to match: {why}",
        hint=f"write the modules' names in place of patterns, or {MERGE_HINT}",
    )


def _read(field: str, given: str, pattern: str) -> NamePattern:
    """Read an expression; UnreadPattern for what no match is bounded of."""
    try:
        return NamePattern(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"`{field}` of `{ADAPTER_CONFIG}` has {given[:_SHOWN_LETTERS]!r}, which is no regular "
            f"expression: {error}",
            hint="save the adapter again with PEFT's save_pretrained",
        ) from error


class WholeNames:
    """A regular expression that PEFT holds against modules' whole names; None fits none.

    One that is not matched in bounded work fits no name: then the tensors say what was trained.

    Attributes
    ----------
    holds : whether there is one that names are held against
    """

    def __init__(self, field: str, pattern: object) -> None:
        """Compile it; CheckpointError for a text that is no regular expression."""
        self._field, self._clock = field, MatchClock()
        self._pattern: NamePattern | None = None
        if isinstance(pattern, str):
            with contextlib.suppress(UnreadPattern):
                self._pattern = _read(field, pattern, pattern)
        self.holds = self._pattern is not None

    def fit(self, module: str) -> bool:
        """Return whether a module's name fits; CheckpointError if that takes too long."""
        pattern = self._pattern
        if pattern is None:
            return False
        try:
            return self._clock.timed(lambda: pattern.is_whole(module))
        except TooMuchWork as error:
            raise _too_long(self._field, str(error)) from error


class Patterns:
    """Numbers by module: the first regular expression that fits a module's name, as PEFT has it.

    Anybody may have written the expressions. Most are names, which are looked up; others that are
    not matched in bounded work are refused, and all matching together has a time limit.
    """

    _MAX_PATTERNS = 256
    _NAME = re.compile(r"[\w.\-]+")

    def __init__(self, field: str, values: Mapping[str, float]) -> None:
        self._field, self._clock = field, MatchClock()
        keys = [(*one, i) for i, one in enumerate(values.items())]
        self._names = {key: (i, value) for key, value, i in keys if self._NAME.fullmatch(key)}
        given = [one for one in keys if one[0] not in self._names]
        if len(given) > self._MAX_PATTERNS:
            raise _too_long(field, "there are too many patterns")
        self._patterns = [(i, self._compile(key), value) for key, value, i in given]

    def _compile(self, key: str) -> NamePattern:
        try:
            return self._clock.timed(lambda: _read(self._field, key, rf"(.*\.)?({key})$"))
        except (TooMuchWork, UnreadPattern) as error:
            raise _too_long(self._field, f"{key[:_SHOWN_LETTERS]!r}: {error}") from error

    def of(self, module: str, default: float) -> float:
        """The number of a module; CheckpointError if that takes too long."""
        if len(module) > LONGEST_NAME:
            raise _too_long(self._field, f"a name has more than {LONGEST_NAME} letters")
        parts = module.split(".")
        ends = (".".join(parts[i:]) for i in range(len(parts)))
        found = [self._names[end] for end in ends if end in self._names]
        found += [(at, value) for at, key, value in self._patterns if self._fits(key, module)]
        return min(found)[1] if found else default

    def _fits(self, key: NamePattern, module: str) -> bool:
        try:
            return self._clock.timed(lambda: key.begins(module))
        except TooMuchWork as error:
            raise _too_long(self._field, str(error)) from error
