"""Chooses the next token from logits: greedy, or by temperature, top-k and top-p with a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import UsageError

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

_LEAST_DEVICE_TEMPERATURE = 0.01  # float32 could overflow far below
_GROUP = 64  # logits that share a maximum in the search for the largest


@dataclass(frozen=True)
class SamplingOptions:
    """How to choose. Temperature 0 is greedy; top_k 0 and top_p 1 leave every token in."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature: expected a number from 0 on, found {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"top_k: expected 0 (off) or more, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p: expected a number above 0 and up to 1, found {self.top_p}")


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
        ids, probabilities = _nucleus(logits, options)
    ids, probabilities = ids[probabilities > 0], probabilities[probabilities > 0]
    if options.top_p < 1:
        before = np.cumsum(probabilities) - probabilities
        kept = int(np.count_nonzero(before < options.top_p))
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
    scaled = logits.astype(np.float64) / temperature
    weights: Float64Array = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def _nucleus(
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

    @property
    def device_options(self) -> tuple[float, float] | None:
        """Temperature and top_p, where a device's sampler can draw; it knows no top_k."""
        options = self._options
        if options.top_k or options.temperature < _LEAST_DEVICE_TEMPERATURE:
            return None
        return options.temperature, options.top_p

    def random(self) -> float:
        """The number in [0, 1) that decides about the next token."""
        return self._generator.random()

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,)."""
        if self._options.temperature == 0:
            return int(np.argmax(logits))
        if self._options.top_k == 0 and self._options.top_p == 1:  # no need to sort
            ids = np.arange(len(logits))
            probabilities = _softmax(logits, self._options.temperature)
        else:
            ids, probabilities = candidates(logits, self._options)
        drawn = np.searchsorted(np.cumsum(probabilities), self._generator.random(), side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])
