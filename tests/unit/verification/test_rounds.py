"""Rounds along a text: where they begin, and what the model returns of the text's own tokens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.verification.rounds import DRAFTS, plan_rounds, rounds_here
from tests import models
from tests.drafted import CHUNK, drafted_package
from tests.hf import Float32Array
from tests.tolerances import LOGITS_F32

pytestmark = pytest.mark.package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted_package(tmp_path_factory, "e2b").package


def test_every_row_is_of_the_text_whatever_is_drafted(package: Path) -> None:
    text = models.prompt(90, seed=4).tolist()
    runs = (range(1, 30), range(60, 85))
    found = rounds_here(package, text, plan_rounds(runs, CHUNK))
    engine = Engine.open(package, drafts=0)
    expected: dict[int, Float32Array] = {}
    for run in runs:
        engine.clear()
        engine.prefill(text[: run.start])
        expected |= {position: engine.decode(text[position]) for position in run}
    seen, sizes = set(), set()
    for one in found:
        assert len(one.logits) == len(one.states) == len(one.drafts) + 1
        for row, logits in enumerate(one.logits):
            np.testing.assert_allclose(
                logits, expected[one.position + row], rtol=0, atol=LOGITS_F32
            )
            seen.add(one.position + row)
        sizes.add(len(one.drafts))
    assert seen == {position for run in runs for position in run}
    assert {0, DRAFTS} < sizes, "the first of a run has none, the last fewer"
    steps = {b.position - a.position for a, b in pairwise(found)}
    assert set(range(1, DRAFTS + 2)) <= steps, "every number of tokens is kept"
    assert any(draft.token != text[one.position + 1] for one in found for draft in one.drafts[:1])


def test_drafts_are_those_without_a_record(package: Path) -> None:
    text = models.prompt(40, seed=5).tolist()
    moves = plan_rounds([range(20, 30)], CHUNK)
    first = next(one for one in rounds_here(package, text, moves) if one.drafts)
    engine = Engine.open(package, drafts=DRAFTS)
    rounds = engine.rounds
    assert rounds is not None
    engine.prefill(text[:20])
    for position in range(20, first.position):
        rounds.advance(text[position], 0)
        rounds.accept(0)
    drafts, _ = rounds.advance(text[first.position], DRAFTS)
    assert drafts == [draft.token for draft in first.drafts]
    for draft in first.drafts:
        assert draft.candidates is not None, "of clusters"
        assert draft.token == draft.candidates[draft.logits.argmax()]


@pytest.mark.parametrize("chunk", [1, 2, 4, 512])
def test_rounds_are_as_long_as_the_package_takes(chunk: int) -> None:
    for run in (range(1, 2), range(1, 9), range(30, 95)):
        moves = plan_rounds([run], chunk)
        assert [move.begins for move in moves] == [True, *(False for _ in moves[1:])]
        assert moves[0].drafts == 0
        assert max(move.drafts for move in moves) <= min(DRAFTS, chunk - 1)
        assert all(move.position + move.drafts < run.stop for move in moves)
        ends = [move.position + move.kept for move in moves]
        assert ends == [*(move.position for move in moves[1:]), run.stop]
        assert all(1 <= move.kept <= move.drafts + 1 for move in moves)
