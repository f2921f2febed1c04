"""Which group of a compressed-tensors config a module is in, as its library finds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from gemma4_compile.checkpoint.name_pattern import (
    MatchClock,
    NamePattern,
    TooMuchWork,
    UnreadPattern,
)
from gemma4_compile.checkpoint.quantised.steps import source_name
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.variants import WHOLE_HINT
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.text.parameters import HEAD

INPUT_SCALE, OUTPUT_SCALE = "input_scale", "output_scale"
_PATTERN = "re:"
_LINEAR = ("Linear", "Module")
_TABLE = ("Gemma4TextScaledWordEmbedding", "Embedding", "Module")
"""transformers' classes of a module, with those that they are made from."""
_MOST_NAMES = 1 << 16


@dataclass(frozen=True)
class Group:
    """A group of modules.

    Attributes
    ----------
    key : of its targets in the config
    targets : names of modules, patterns of them behind `re:`, or classes
    ends : scales that its inputs and outputs are rounded by: `INPUT_SCALE`, `OUTPUT_SCALE`
    """

    key: str
    targets: tuple[str, ...]
    ends: tuple[str, ...]


def read_names(fields: ConfigFields, name: str) -> tuple[str, ...]:
    """A list of targets; none where there is none."""
    found = fields.get(name)
    names = [] if found is None else found
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(
            f"config key `{fields.key(name)}`: expected a list of modules' names, patterns or "
            f"classes, found {str(found)[:60]!r}",
            hint=WHOLE_HINT,
        )
    if len(names) > _MOST_NAMES:
        raise ConfigError(
            f"config key `{fields.key(name)}`: expected up to {_MOST_NAMES} names, found "
            f"{len(names)}",
            hint=WHOLE_HINT,
        )
    return tuple(names)


class Groups:
    """The groups of a config, by module.

    A module's name goes before a pattern of it, and that before its class; of several of one kind
    the first one in the order of the alphabet counts, and of groups with one target the last.
    """

    def __init__(self, groups: Iterable[Group], ignore_key: str, ignore: Sequence[str]) -> None:
        by_target = {target: group for group in groups for target in group.targets}
        ordered = sorted(by_target, key=lambda target: (_PATTERN in target, target))
        clock = MatchClock()
        self._groups = {target: by_target[target] for target in ordered}
        self._order = {target: index for index, target in enumerate(ordered)}
        self._patterns = [
            _Pattern(by_target[one].key, one, clock) for one in ordered if _is_pattern(one)
        ]
        self._ignored = frozenset(ignore)
        self._ignored_patterns = [
            _Pattern(ignore_key, one, clock) for one in dict.fromkeys(ignore) if _is_pattern(one)
        ]

    def of(self, module: str) -> Group | None:
        """The group of a module by its name in the files; None of one that is not rounded.

        Raises
        ------
        ConfigError
            If the patterns take too long to match.
        """
        try:
            return self._find(module)
        except TooMuchWork as error:
            raise ConfigError(
                f"the patterns of `quantization_config` take too long to match: {error}",
                hint=WHOLE_HINT,
            ) from error

    def _find(self, module: str) -> Group | None:
        bare = source_name(f"{module}.weight").removesuffix(".weight")
        # One checkpoint is read as the whole model and as its text decoder with its head.
        fronts = ("",) if bare == HEAD else [front for front in TEXT.prefixes if front]
        names = {module, *(f"{front}{bare}" for front in fronts)}
        kind = _TABLE if bare.startswith("embed_tokens") else _LINEAR
        if not self._ignored.isdisjoint({*names, *kind}):
            return None
        if any(one.fits(names) for one in self._ignored_patterns):
            return None
        named = self._first(names)
        if named is None:
            named = next((one.text for one in self._patterns if one.fits(names)), None)
        target = self._first(kind) if named is None else named
        return None if target is None else self._groups[target]

    def _first(self, texts: Iterable[str]) -> str | None:
        """The first target in the order of all that is one of these."""
        return min(self._order.keys() & set(texts), key=self._order.__getitem__, default=None)


def _is_pattern(target: str) -> bool:
    return target.startswith(_PATTERN)


class _Pattern:
    """A pattern of modules' names."""

    def __init__(self, key: str, text: str, clock: MatchClock) -> None:
        self.text, self._clock = text, clock
        pattern = text.removeprefix(_PATTERN)
        try:
            self._pattern = clock.timed(lambda: NamePattern(pattern))
        except (TooMuchWork, UnreadPattern) as error:
            raise ConfigError(
                f"config key `{key}`: {text[:80]!r} may take long to match: {error}",
                hint=WHOLE_HINT,
            ) from error
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"config key `{key}`: {text[:80]!r} is no regular expression: {error}",
                hint=WHOLE_HINT,
            ) from error

    def fits(self, modules: Iterable[str]) -> bool:
        """Return whether one of these names fits it."""
        begins = self._pattern.begins
        return any(self._clock.timed(partial(begins, module)) for module in modules)
