"""Replies beside each other where a given share of guesses comes true: rounds, steps, or as pays.

The scheduler of `gemma4-serve`, over sampled replies of one engine. As in `guessed_replies.py` a
coin decides how many guesses of a round come true, for random weights guess wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence as Listed
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.guessed_replies import OPTIONS, accepted_by_coin, agreed
from benchmarks.samples import summary
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import Engine, Sampler
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Peek
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns, Turn

WAYS = ("steps", "rounds", "joint", "auto")
"""`joint` is `rounds` where no forward takes guesses of so many replies."""

_TURNS = {"steps": Turn.STEP, "rounds": Turn.ROUNDS, "joint": Turn.JOINT_ROUND}


class _Always(DraftTurns):
    """One kind of turn, whatever it takes."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def turn(self, replies: int, hoped_rate: float | None, *, joins: bool) -> Turn:
        del replies, hoped_rate
        return Turn.ROUNDS if self._turn is Turn.JOINT_ROUND and not joins else self._turn


def guessed_beside(
    engine: Engine,
    ids: Listed[int],
    context: int,
    count: int,
    share: float,
    way: str,
    tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """`count` replies of `tokens` tokens after `context` of their own: tokens a second in all.

    From when the last prompt is read to the end of the first reply.
    """
    if not engine.sampling.is_faster or engine.rounds is None:
        raise UsageError("--replies: this device draws no tokens", hint="measure cuda or metal")
    for other in engine.sequences.others:
        engine.sequences.remove(other)
    engine.clear()
    words, rng = Tokenizer(WordLevel({"": 0}, unk_token="")), np.random.default_rng(5)
    slots = Slots(EngineSequences(engine), lambda one: Generator(one, words, frozenset()))
    draw = Rounds.advance_drawn

    def by_coin(
        rounds: Rounds, token_id: int, drafts: int, options: DrawOptions, peek: Peek
    ) -> tuple[list[int], list[int]]:
        guesses, drawn = draw(rounds, token_id, drafts, options, peek)
        return guesses, agreed(guesses, drawn, accepted_by_coin(rng, len(guesses), share))

    Rounds.advance_drawn = by_coin  # type: ignore[assignment,method-assign]
    try:
        asyncio.run(_measured(slots, ids, context, 1, "auto", tokens))  # one alone is timed, too
        samples = [
            asyncio.run(_measured(slots, ids, context, count, way, tokens))
            for _ in range(repeats + 1)
        ][1:]
    finally:
        Rounds.advance_drawn = draw  # type: ignore[method-assign]
    rates, rounds = zip(*samples, strict=True)
    return {
        "context": context,
        "sequences": count,
        "share": share,
        "way": way,
        "tokens": tokens,
        "tokens_per_second": summary(list(rates)),
        "tokens_of_rounds": round(sum(rounds) / len(rounds), 2),
    }


async def _measured(
    slots: Slots, ids: Listed[int], context: int, count: int, way: str, tokens: int
) -> tuple[float, float]:
    """Tokens a second, and the share of tokens that came from rounds."""
    ended: set[Ticket] = set()
    scheduler = Scheduler(slots, ended.add)
    if way != "auto":
        scheduler.draft_turns = _Always(_TURNS[way])
    tickets = []
    for seed in range(count):
        prompt = list(ids[1000 * seed : 1000 * seed + context])

        def start(
            generator: Generator, prompt: Listed[int] = prompt, seed: int = seed
        ) -> Generation:
            return generator.start(prompt, Sampler(OPTIONS, seed), max_tokens=tokens, plain=True)

        assert slots.has_room(), "the engine has as many sequences"
        tickets.append(Ticket(start, lambda _: None, prompt))
        scheduler.admit(tickets[-1])
    while any(run.reads for run in scheduler.runs):
        scheduler.turn()
    before, begin = scheduler.counts.generated_tokens, time.perf_counter()
    before_rounds = _tokens_of_rounds(scheduler)
    while not ended:
        scheduler.turn()
    seconds = time.perf_counter() - begin
    made = scheduler.counts.generated_tokens - before
    of_rounds = (_tokens_of_rounds(scheduler) - before_rounds) / made
    while len(ended) < count:
        scheduler.turn()
    return made / seconds, of_rounds


def _tokens_of_rounds(scheduler: Scheduler) -> int:
    return scheduler.counts.turn_tokens + scheduler.counts.joint_round_tokens
