"""Whole sampled replies of the runtime where a given share of guesses comes true.

Random weights guess wrong. So what a round drew is put aside and a coin decides how many of its
guesses come true; everything else is a reply's: the drafter, the model, the draws, the rule that
chooses the number of guesses by the clock, and the loop that people run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Peek, Sampler, SamplingOptions
from gemma4_compile.runtime.speculative.draft_pace import DraftPace

OPTIONS = SamplingOptions(temperature=1.0, top_p=0.95, top_k=0)


def accepted_by_coin(rng: np.random.Generator, guesses: int, share: float) -> int:
    """Guesses of a round before the first wrong one, where each by itself is right so often."""
    wrong = np.flatnonzero(rng.random(guesses) >= share)
    return int(wrong[0]) if len(wrong) else guesses


class GuessedReplies:
    """Replies of one engine with a drafter, whose guesses come true as often as is asked for."""

    def __init__(self, engine: Engine, fill: Callable[[], object]) -> None:
        """`fill` clears the engine and adds a prompt.

        UsageError where the engine does not draw tokens itself: there is nothing to put aside then.
        """
        if not engine.sampling.is_faster or engine.rounds is None:
            raise UsageError("--replies: this device draws no tokens", hint="measure cuda or metal")
        self._engine, self._fill = engine, fill
        self._rounds = engine.rounds
        self._draw = engine.rounds.advance_drawn
        self._words = Tokenizer(WordLevel({"": 0}, unk_token=""))

    def tokens_per_s(
        self, share: float, drafts: int | None, tokens: int, replies: int
    ) -> list[float]:
        """Tokens a second of replies one after the other, from the first token to the last.

        Parameters
        ----------
        share : of guesses that come true, each by itself
        drafts : guesses of a round; None for as many as pay, which each reply learns anew
        """
        rng = np.random.default_rng(5)

        def by_coin(
            token_id: int, count: int, options: DrawOptions, peek: Peek
        ) -> tuple[list[int], list[int]]:
            guesses, drawn = self._draw(token_id, count, options, peek)
            return guesses, agreed(guesses, drawn, accepted_by_coin(rng, len(guesses), share))

        self._rounds.advance_drawn = by_coin  # type: ignore[assignment,method-assign]
        try:
            return [self._reply(drafts, tokens) for _ in range(replies)]
        finally:
            del self._rounds.advance_drawn

    def _reply(self, drafts: int | None, tokens: int) -> float:
        generator = Generator(self._engine, self._words, frozenset())
        generator.pace = DraftPace.of(drafts, self._rounds.most_drafts)
        self._fill()
        logits = self._engine.decode(3)
        with closing(generator.next_token(Sampler(OPTIONS, seed=6))) as way:
            token_id = way.first(logits)
            begin = time.perf_counter()
            for _ in range(tokens):
                token_id = way.after(token_id)
            return tokens / (time.perf_counter() - begin)


def agreed(guesses: Sequence[int], drawn: Sequence[int], count: int) -> list[int]:
    """Tokens (a row each) of which the first `count` are the guesses, and the next one is not."""
    rows = [*guesses[:count], *drawn[count:]]
    if count < len(guesses) and rows[count] == guesses[count]:
        rows[count] ^= 1
    return rows
