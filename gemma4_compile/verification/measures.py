"""Distances between two models: logits as distributions, layers as vectors. NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.drafter.reference import Draft

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

TOP = 5


@dataclass(frozen=True)
class LogitMeasures:
    """Logits of a package and the reference's, over some positions.

    Attributes
    ----------
    kl_mean, kl_max : divergence of the package's distribution from the reference's, nats
    top1 : share of positions with the same most probable token
    top5 : mean share of the reference's five most probable tokens among the package's five
    max_error : largest difference of two logits
    perplexity, reference_perplexity : of the text's next tokens, where the text goes on
    """

    positions: int
    kl_mean: float
    kl_max: float
    top1: float
    top5: float
    max_error: float
    perplexity: float
    reference_perplexity: float


@dataclass(frozen=True)
class Positions:
    """Two distributions of the next token at each position, one of them the reference.

    Attributes
    ----------
    divergence : of the distribution from the reference, nats
    same_token : 1 where the most probable token is the same, else 0
    shared_tokens : share of the reference's five most probable tokens among the other's five
    loss, reference_loss : of the text's next token, nats; NaN where the text ends
    """

    divergence: Float64Array
    same_token: Float64Array
    shared_tokens: Float64Array
    loss: Float64Array
    reference_loss: Float64Array

    def part(self, rows: slice) -> Positions:
        """Some of the positions."""
        return Positions(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True)
class TextMeasures:
    """Distributions of a text's next tokens, at all of its positions.

    Attributes
    ----------
    kl_mean, kl_p99, kl_max : divergence from the reference's distribution, nats; `kl_p99` is that
        of the position which a hundredth of them exceed
    top1, top5, perplexity, reference_perplexity : as of LogitMeasures
    """

    positions: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1: float
    top5: float
    perplexity: float
    reference_perplexity: float

    @classmethod
    def of(cls, found: Positions) -> TextMeasures:
        """Measures of some positions."""
        return cls(
            positions=len(found.divergence),
            kl_mean=float(found.divergence.mean()),
            kl_p99=float(np.quantile(found.divergence, 0.99)),
            kl_max=float(found.divergence.max()),
            top1=float(found.same_token.mean()),
            top5=float(found.shared_tokens.mean()),
            perplexity=float(np.exp(np.nanmean(found.loss))),
            reference_perplexity=float(np.exp(np.nanmean(found.reference_loss))),
        )


@dataclass(frozen=True)
class LayerMeasures:
    """The residual stream after one layer, of a package and the reference's, over some positions.

    Attributes
    ----------
    cosine_min, cosine_mean : of the two vectors of a position
    max_error : largest difference of two channels
    relative_error : length of the difference over that of the reference, the largest
    """

    cosine_min: float
    cosine_mean: float
    max_error: float
    relative_error: float


@dataclass(frozen=True)
class RowMeasures:
    """Rows that stand for a picture or a sound, of a package and the reference.

    Attributes
    ----------
    mean_error, max_error : difference of two channels
    relative_error : length of the difference of all rows over that of the reference's
    worst_row : the largest difference of a row over the reference's rows, root mean square; a row
        of silence may be 0
    """

    rows: int
    mean_error: float
    max_error: float
    relative_error: float
    worst_row: float


@dataclass(frozen=True)
class DraftMeasures:
    """Drafts of a package's drafter and the reference's, which begin with the package's tokens.

    Attributes
    ----------
    candidates : mean share of the reference's candidates that the package compared, too; 1 where
        every token is one
    kl_mean, kl_max : divergence over the candidates of both, nats
    guesses : how many drafts; the word is that of reports that packages have
    top1 : share of drafts of the same token
    max_error : largest difference of two logits of candidates of both
    cosine_min, cosine_mean, relative_error : of the states for the next draft, as of a layer
    """

    guesses: int
    candidates: float
    kl_mean: float
    kl_max: float
    top1: float
    max_error: float
    cosine_min: float
    cosine_mean: float
    relative_error: float


class FoundDraft(Protocol):
    """A draft of a package; `candidates` is None where every token is one."""

    @property
    def token(self) -> int: ...  # noqa: D102  # of rounds.PackageDraft

    @property
    def state(self) -> Float32Array: ...  # noqa: D102

    @property
    def logits(self) -> Float32Array: ...  # noqa: D102

    @property
    def candidates(self) -> npt.NDArray[np.int32] | None: ...  # noqa: D102


def log_probabilities(logits: Float32Array) -> Float64Array:
    """Logarithms of the softmax over the last axis, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergence(found: Float32Array, expected: Float32Array) -> Float64Array:
    """``sum p (log p - log q)`` of each row, p of `expected` and q of `found`; never negative."""
    p, q = log_probabilities(expected), log_probabilities(found)
    result: Float64Array = np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)
    return result


def _top(logits: Float32Array, count: int) -> npt.NDArray[np.int64]:
    order: npt.NDArray[np.int64] = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    return order


def compare_logits(
    found: Float32Array,
    expected: Float32Array,
    following: Sequence[int | None],
    excluded: Sequence[int] = (),
) -> LogitMeasures:
    """Compare logits position by position.

    Parameters
    ----------
    found, expected : (positions, vocab_size), float32
    following : the text's next token after each position, None where the text ends
    excluded : ids of tokens that the package masks, left out on both sides
    """
    if excluded:
        kept = np.ones(found.shape[1], bool)
        kept[list(excluded)] = False
        places = np.cumsum(kept) - 1
        following = [None if t is None or not kept[t] else int(places[t]) for t in following]
        found, expected = found[:, kept], expected[:, kept]
    kl = divergence(found, expected)
    best_found, best_expected = _top(found, TOP), _top(expected, TOP)
    shared = [
        len(set(a.tolist()) & set(b.tolist())) / len(b)
        for a, b in zip(best_found, best_expected, strict=True)
    ]
    known = [(row, token) for row, token in enumerate(following) if token is not None]
    rows, tokens = [row for row, _ in known], [token for _, token in known]
    return LogitMeasures(
        positions=len(found),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1=float((best_found[:, 0] == best_expected[:, 0]).mean()),
        top5=float(np.mean(shared)),
        max_error=float(np.abs(found.astype(np.float64) - expected).max()),
        perplexity=_perplexity(found, rows, tokens),
        reference_perplexity=_perplexity(expected, rows, tokens),
    )


def _perplexity(logits: Float32Array, rows: Sequence[int], tokens: Sequence[int]) -> float:
    losses = -log_probabilities(logits[list(rows)])[np.arange(len(rows)), list(tokens)]
    return float(np.exp(losses.mean()))


def compare_layer(found: Float32Array, expected: Float32Array) -> LayerMeasures:
    """Compare (positions, hidden_size) residual streams, float32."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = np.minimum((a * b).sum(axis=-1) / lengths, 1.0)
    difference = a - b
    relative = np.linalg.norm(difference, axis=-1) / np.linalg.norm(b, axis=-1)
    return LayerMeasures(
        cosine_min=float(cosine.min()),
        cosine_mean=float(cosine.mean()),
        max_error=float(np.abs(difference).max()),
        relative_error=float(relative.max()),
    )


def compare_rows(found: Float32Array, expected: Float32Array) -> RowMeasures:
    """Compare (rows, hidden_size) rows of a medium, float32."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    difference = a - b
    apart, lengths = np.linalg.norm(difference, axis=-1), np.linalg.norm(b, axis=-1)
    usual = float(np.sqrt(np.square(lengths).mean()))
    return RowMeasures(
        rows=len(b),
        mean_error=float(np.abs(difference).mean()),
        max_error=float(np.abs(difference).max()),
        relative_error=float(np.sqrt(np.square(apart).mean())) / usual,
        worst_row=float(apart.max()) / usual,
    )


def compare_drafts(pairs: Sequence[tuple[FoundDraft, Draft]]) -> DraftMeasures:
    """Compare drafts with the reference's one by one."""
    shares, kl, errors = [], [], []
    for found, expected in pairs:
        own = found.candidates
        if own is None:
            own = np.arange(len(found.logits), dtype=np.int32)
        common, ours, theirs = np.intersect1d(own, expected.candidates, return_indices=True)
        shares.append(len(common) / len(expected.candidates))
        if not len(common):
            kl.append(np.inf)
            continue
        logits, right = found.logits[ours], expected.logits[theirs]
        kl.append(float(divergence(logits[None], right[None])[0]))
        errors.append(float(np.abs(logits.astype(np.float64) - right).max()))
    states = compare_layer(
        np.stack([found.state for found, _ in pairs]),
        np.stack([expected.hidden for _, expected in pairs]),
    )
    return DraftMeasures(
        guesses=len(pairs),
        candidates=float(np.mean(shares)),
        kl_mean=float(np.mean(kl)),
        kl_max=float(np.max(kl)),
        top1=float(np.mean([found.token == expected.token for found, expected in pairs])),
        max_error=max(errors, default=float("inf")),
        cosine_min=states.cosine_min,
        cosine_mean=states.cosine_mean,
        relative_error=states.relative_error,
    )
