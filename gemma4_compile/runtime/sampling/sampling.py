"""Chooses the next token from logits: greedy, or by temperature, top-k and top-p with a seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import UsageError
from gemma4_compile.options.sampling_ranges import (
    SAMPLING_RANGES,
    SamplingValueError,
    read_sampling,
)

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

TokenChooser = Callable[[Float32Array], int]
"""Chooses a token id from logits (vocab_size,): a `Sampler`."""


@runtime_checkable
class PromptReader(Protocol):
    """A `TokenChooser` that counts what was said."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Hear of a new reply after these ids, before its first token is chosen."""


DrawOptions = tuple[float, float]
"""Temperature and top_p of draws on the device, above 0."""

Peek = Callable[[int], Sequence[float]]
"""Random numbers in [0, 1) of the next tokens; they are not used up yet."""

_LEAST_DEVICE_TEMPERATURE = 0.01  # float32 could overflow far below
_GREEDY = 1e-4, 1e-6  # temperature and top_p at which a device draws the most probable token
_GROUP = 64  # logits that share a maximum in the search for the largest


PENALTIES = ("min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling. Temperature 0 is greedy; top_k 0 and top_p 1 leave every token in.

    `gemma4_compile.options.sampling_ranges` defines the ranges. The PENALTIES are for
    `AdjustedSampler`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what has no meaning, and take each value as `read_sampling` does."""
        for field in fields(self):
            try:
                value = read_sampling(field.name, getattr(self, field.name))
            except SamplingValueError as error:
                raise UsageError(f"{field.name}: {error}") from error
            object.__setattr__(self, field.name, value)

    @property
    def adjusts_logits(self) -> bool:
        """Return whether one of the PENALTIES is in force."""
        return any(getattr(self, name) != SAMPLING_RANGES[name].neutral for name in PENALTIES)


def candidates(
    logits: Float32Array, options: SamplingOptions
) -> tuple[npt.NDArray[np.int64], Float64Array]:
    """Token ids that may be drawn, most probable first, and their probabilities (they sum to 1).

    Tokens whose logit is minus infinity are never among them.

    The temperature comes first, then the top_k most probable tokens, then the smallest set of the
    most probable whose sum reaches top_p. Equal tokens are ordered by id.

    Parameters
    ----------
    logits : (vocab_size,), float32
    options : temperature above 0
    """
    if options.top_k:
        ids = most_probable(logits, options.top_k)
        probabilities = _softmax(logits[ids], options.temperature)
    else:
        ids, probabilities = _top_p(logits, options)
    ids, probabilities = ids[probabilities > 0], probabilities[probabilities > 0]
    if options.top_p < 1:
        before = np.cumsum(probabilities) - probabilities
        kept = max(int(np.count_nonzero(before < options.top_p)), 1)
        ids, probabilities = ids[:kept], probabilities[:kept]
        probabilities /= probabilities.sum()
    return ids, probabilities


def most_probable(logits: Float32Array, count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` largest logits, largest first, equal ones by id.

    Only groups of _GROUP logits whose maximum is among the `count` largest maxima can hold one of
    them, so the others are not sorted.
    """
    groups = len(logits) // _GROUP
    if count >= groups:
        return np.argsort(-logits, kind="stable")[:count]
    maxima = logits[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    reached = np.flatnonzero(maxima >= np.partition(maxima, -count)[-count])
    inside = (np.arange(_GROUP)[:, None] * groups + reached).reshape(-1)
    ids = np.concatenate([inside, np.arange(groups * _GROUP, len(logits))])
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def _softmax(logits: Float32Array, temperature: float) -> Float64Array:
    distances = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # far from the largest at a low temperature: minus infinity
        weights: Float64Array = np.exp(distances / temperature)
    return weights / weights.sum()


def _top_p(
    logits: Float32Array, options: SamplingOptions
) -> tuple[npt.NDArray[np.int64], Float64Array]:
    """At least the tokens that reach top_p, with their share of the whole, largest first.

    Of N tokens, those less probable than (1 - top_p) / N hold less than 1 - top_p in all: without
    them the others still reach top_p.
    """
    probabilities = _softmax(logits, options.temperature)
    ids = np.flatnonzero(probabilities >= (1 - options.top_p) / len(logits))
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    return ids, probabilities[ids]


class Sampler:
    """Draws tokens; the same seed and logits give the same tokens."""

    def __init__(self, options: SamplingOptions, seed: int | None = None) -> None:
        self._options = options
        self._generator = np.random.default_rng(seed)
        self._ahead: deque[float] = deque()

    @property
    def device_options(self) -> DrawOptions | None:
        """Temperature and top_p, where a device's sampler can draw; it knows no top_k."""
        options = self._options
        if options.top_k or options.temperature < _LEAST_DEVICE_TEMPERATURE:
            return None
        return options.temperature, options.top_p

    @property
    def round_options(self) -> DrawOptions | None:
        """As `device_options`; greedily, too, where all but the most probable token count 0."""
        return self.device_options if self._options.temperature else _GREEDY

    def random(self) -> float:
        """The number in [0, 1) that decides about the next token."""
        return self._ahead.popleft() if self._ahead else self._generator.random()

    def peek(self, count: int) -> list[float]:
        """What the next calls of `random` will give."""
        while len(self._ahead) < count:
            self._ahead.append(self._generator.random())
        return list(islice(self._ahead, count))

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,)."""
        if self._options.temperature == 0:
            return int(np.argmax(logits))
        if self._options.top_k == 0 and self._options.top_p == 1:  # no need to sort
            ids = np.arange(len(logits))
            probabilities = _softmax(logits, self._options.temperature)
        else:
            ids, probabilities = candidates(logits, self._options)
        drawn = np.searchsorted(np.cumsum(probabilities), self.random(), side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])


class AdjustedSampler:
    """Changes logits by what was said before, and by biases, and lets a `Sampler` draw."""

    def __init__(
        self,
        options: SamplingOptions,
        seed: int | None = None,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Prepare for one reply after another.

        Parameters
        ----------
        logit_bias : what is added to the logits of some token ids
        """
        self._options = options
        self._sampler = Sampler(options, seed)
        self._bias_ids = np.array(list(logit_bias), np.int64)
        self._biases = np.array(list(logit_bias.values()), np.float32)
        self._prompt: set[int] = set()
        self._counts: dict[int, int] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the reply before; the repetition penalty counts a prompt's tokens, too."""
        self._prompt = set(prompt)
        self._counts = {}

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,)."""
        token_id = self._sampler(self._adjusted(logits))
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        return token_id

    def _adjusted(self, logits: Float32Array) -> Float32Array:
        options, adjusted = self._options, logits.astype(np.float32)
        if options.repetition_penalty != 1:
            seen = np.array(sorted(self._prompt | self._counts.keys()), np.int64)
            values, penalty = adjusted[seen], np.float32(options.repetition_penalty)
            adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts and (options.frequency_penalty or options.presence_penalty):
            said = np.array(list(self._counts), np.int64)
            counts = np.array(list(self._counts.values()), np.float32)
            adjusted[said] -= counts * options.frequency_penalty + options.presence_penalty
        adjusted[self._bias_ids] += self._biases
        if options.min_p and options.temperature:
            # p >= min_p * max(p), in logits
            least = adjusted.max() + options.temperature * np.log(options.min_p)
            adjusted[adjusted < least] = -np.inf
        return adjusted


def make_sampler(
    options: SamplingOptions,
    seed: int | None = None,
    logit_bias: Mapping[int, float] = MappingProxyType({}),
) -> Sampler | AdjustedSampler:
    """Return the simplest sampler that follows the options."""
    if logit_bias or options.adjusts_logits:
        return AdjustedSampler(options, seed, logit_bias)
    return Sampler(options, seed)
