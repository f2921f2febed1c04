"""Replies with guesses next to transformers' in float32: plain and assisted greedy decoding."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime import Engine, Package
from tests import hf, hf_drafter, models
from tests.drafted import Replies, drafted_package, knows, let_guess

COUNT = 40
TIED, OWN = (False, False), (True, True)
"""Which of target and drafter have a head of their own."""


@pytest.mark.slow  # guesses change no reply in tests/e2e/test_drafts.py, and drafts are right
@pytest.mark.parametrize(
    ("kind", "heads"),
    [*((kind, TIED) for kind in ("e2b", "unified", "moe")), ("dense", OWN)],
)
def test_greedy_replies_are_those_of_transformers(
    kind: str,
    heads: tuple[bool, bool],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two turns, windows that wrap, guesses of the drafter and guesses that mostly come true."""
    made = drafted_package(tmp_path_factory, kind, heads=heads)
    model = hf.load(made.target.text_config, made.target.weights, "float32")
    engine = Engine(Package.open(made.package))
    for seed in range(2):
        prompt = models.prompt(20 + 7 * seed, seed=100 + seed).tolist()
        first = hf_drafter.generated(model, prompt, COUNT)
        # The second turn begins within what the first one has said.
        again = [*prompt, *first[:-7], *models.prompt(11, seed=200 + seed).tolist()]
        second = hf_drafter.generated(model, again, COUNT)
        if seed == 0:
            assistant = hf_drafter.load(made.drafter)
            assert hf_drafter.generated(model, again, COUNT, assistant) == second
        for index, drafts in enumerate((1, 2, 5, 8)):
            wrong = (None, 0.3)[(index + seed) % 2]  # each with each number of guesses, once
            replies = Replies(engine, made, drafts)
            for text, reply in ((prompt, first), (again, second)):
                with monkeypatch.context() as patched:
                    if wrong is not None:
                        let_guess(patched, engine, knows([*text, *reply], wrong, drafts))
                    assert replies.reply(text, count=COUNT) == reply, (seed, drafts, wrong)
            assert replies.generator.drafting.guessed > 0
