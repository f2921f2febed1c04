"""Distances of logits and layers against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.model_spec.drafter.reference import Draft
from gemma4_compile.verification.measures import (
    compare_drafts,
    compare_layer,
    compare_logits,
    compare_rows,
    divergence,
    log_probabilities,
)
from gemma4_compile.verification.rounds import PackageDraft


def logits(*rows: list[float]) -> np.ndarray:
    return np.array([np.log(row) for row in rows], np.float32)


def test_probabilities_of_any_size_of_logits() -> None:
    values = log_probabilities(np.array([[1000.0, 1000.0], [-1e30, 0.0]], np.float32))
    np.testing.assert_allclose(values[0], np.log([0.5, 0.5]))
    np.testing.assert_allclose(values[1], [-1e30, 0.0])


def test_divergence_by_hand() -> None:
    expected, found = logits([0.5, 0.25, 0.25]), logits([0.25, 0.5, 0.25])
    by_hand = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    np.testing.assert_allclose(divergence(found, expected), [by_hand], rtol=1e-6)
    assert divergence(expected, expected)[0] == 0.0


def test_agreement_and_perplexity() -> None:
    expected = logits([0.4, 0.2, 0.15, 0.1, 0.1, 0.05], [0.1, 0.5, 0.1, 0.1, 0.15, 0.05])
    found = logits([0.2, 0.4, 0.15, 0.05, 0.1, 0.1], [0.1, 0.5, 0.1, 0.15, 0.1, 0.05])
    measures = compare_logits(found, expected, [0, None])
    assert measures.positions == 2
    assert measures.top1 == 0.5
    assert measures.top5 == pytest.approx((4 / 5 + 5 / 5) / 2)
    assert measures.reference_perplexity == pytest.approx(1 / 0.4)
    assert measures.perplexity == pytest.approx(1 / 0.2)


def test_masked_tokens_do_not_count() -> None:
    expected = logits([0.6, 0.2, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1])
    found = expected.copy()
    found[:, 0] = -1e30
    measures = compare_logits(found, expected, [2, 0], excluded=[0])
    assert measures.kl_max == 0.0
    assert measures.top1 == 1.0
    assert measures.perplexity == pytest.approx(0.4 / 0.1)  # the masked next token is left out


def test_layers_by_hand() -> None:
    expected = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)
    found = np.array([[3.0, 4.0], [1.0, 1.0]], np.float32)
    measures = compare_layer(found, expected)
    assert measures.cosine_min == pytest.approx(1 / np.sqrt(2))
    assert measures.cosine_mean == pytest.approx((1 + 1 / np.sqrt(2)) / 2)
    assert measures.max_error == 1.0
    assert measures.relative_error == 1.0


def test_rows_by_hand() -> None:
    expected = np.array([[3, 4], [0, 0], [0, 5]], np.float32)
    found = expected + np.array([[0, 0.5], [0, 0], [-0.25, 0]], np.float32)
    measures = compare_rows(found, expected)
    assert measures.rows == 3
    np.testing.assert_allclose(measures.mean_error, 0.75 / 6)
    np.testing.assert_allclose(measures.max_error, 0.5)
    np.testing.assert_allclose(measures.relative_error, (0.3125 / 50) ** 0.5)
    np.testing.assert_allclose(measures.worst_row, 0.5 / (50 / 3) ** 0.5)


def test_rows_that_are_not_finite_have_no_small_error() -> None:
    expected = np.ones((2, 3), np.float32)
    found = expected.copy()
    found[1, 1] = np.nan
    assert not compare_rows(found, expected).relative_error < 1e9


STATE = np.array([3.0, 4.0], np.float32)
EXPECTED = Draft(7, np.log(np.array([0.5, 0.25, 0.25], np.float32)), np.array([7, 2, 5]), STATE)


def test_drafts_are_compared_over_the_candidates_of_both() -> None:
    same = PackageDraft(
        7, 2 * STATE, EXPECTED.logits[::-1] + 1, EXPECTED.candidates[::-1].astype(np.int32)
    )
    found = compare_drafts([(same, EXPECTED)])
    assert (found.guesses, found.candidates, found.top1) == (1, 1, 1)
    assert found.kl_mean < 1e-12, "probabilities do not change with a constant"
    assert found.max_error == pytest.approx(1)
    assert found.cosine_min == pytest.approx(1)
    assert found.relative_error == pytest.approx(1)

    other = PackageDraft(
        2, np.array([4.0, -3.0], np.float32), EXPECTED.logits, np.array([7, 2, 9], np.int32)
    )
    found = compare_drafts([(same, EXPECTED), (other, EXPECTED)])
    assert found.candidates == pytest.approx(5 / 6)
    assert found.top1 == 0.5
    assert found.cosine_min == pytest.approx(0)
    assert found.kl_max < 1e-12, "of two of three candidates the logits are the same"

    dense = PackageDraft(0, STATE, np.zeros(9, np.float32), None)
    found = compare_drafts([(dense, EXPECTED)])
    by_hand = 0.5 * np.log(0.5 * 3) + 0.5 * np.log(0.25 * 3)
    assert found.kl_mean == pytest.approx(by_hand)


def test_drafts_without_a_candidate_in_common_are_infinitely_far() -> None:
    foreign = PackageDraft(1, STATE, EXPECTED.logits, np.array([1, 3, 4], np.int32))
    found = compare_drafts([(foreign, EXPECTED)])
    assert (found.candidates, found.kl_mean, found.max_error) == (0, np.inf, np.inf)
