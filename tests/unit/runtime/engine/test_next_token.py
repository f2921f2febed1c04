"""Which way leads to the next token, and what each leaves in the state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemma4_compile.runtime.engine.next_token import (
    ChosenOnHost,
    DrawnOnDevice,
    GuessedAhead,
    Guessing,
    Held,
    NextToken,
    RowsOnDevice,
    RowsOnHost,
    next_token,
)
from gemma4_compile.runtime.engine.token_engine import DeviceSampling
from gemma4_compile.runtime.sampling.sampling import (
    Float32Array,
    Sampler,
    SamplingOptions,
    TokenChooser,
)
from gemma4_compile.runtime.speculative.draft_pace import Drafting, DraftPace
from tests.scripted_engine import (
    END_OF_TURN,
    GuessingEngine,
    LogitRows,
    ScriptedEngine,
    greedy,
)

SAID = [11, 12, 13, 14, 15, 16, 17, 18]
DRAWN = Sampler(SamplingOptions(temperature=1.0, top_p=0.9), seed=1)
GREEDY = Sampler(SamplingOptions(temperature=0.0))
TOP_K = Sampler(SamplingOptions(temperature=1.0, top_k=5), seed=1)


class Drawn:
    def __init__(self, engine: ScriptedEngine, token_id: int | None) -> None:
        self._engine, self._last = engine, token_id

    def __next__(self) -> int:
        if self._last is not None:
            self._engine.decode(self._last)
        self._last = self._engine.reply[self._engine.said]
        return self._last

    def close(self) -> None:
        self._last = None


class Device:
    """Draws what the engine says."""

    def __init__(self, engine: ScriptedEngine, *, is_faster: bool = True) -> None:
        self._engine, self.is_faster = engine, is_faster

    def draw_last(self, options: tuple[float, float], uniform: float) -> int:
        del options, uniform
        return self._engine.reply[self._engine.said]

    def sampled(
        self,
        temperature: float,
        top_p: float,
        random: Callable[[], float],
        token_id: int | None = None,
    ) -> Drawn:
        del temperature, top_p, random
        return Drawn(self._engine, token_id)


class DrawingEngine(GuessingEngine):
    is_faster = True

    @property
    def sampling(self) -> DeviceSampling:
        return Device(self, is_faster=self.is_faster)


def guessing(engine: GuessingEngine, drafts: int | None = 4) -> Guessing:
    return Guessing(engine.rounds, DraftPace.of(drafts, engine.most_drafts), Drafting())


@pytest.mark.parametrize(
    ("chooser", "is_faster", "plain", "rows"),
    [
        (greedy, True, ChosenOnHost, RowsOnHost),
        (TOP_K, True, ChosenOnHost, RowsOnHost),
        (GREEDY, True, ChosenOnHost, RowsOnDevice),
        (DRAWN, True, DrawnOnDevice, RowsOnDevice),
        (DRAWN, False, ChosenOnHost, RowsOnHost),
    ],
)
def test_the_device_draws_where_it_can_and_is_faster(
    chooser: TokenChooser, is_faster: bool, plain: type, rows: type
) -> None:
    engine = DrawingEngine(SAID)
    engine.is_faster = is_faster
    assert type(next_token(engine, Held(), chooser, None)) is plain
    ahead = next_token(engine, Held(), chooser, guessing(engine))
    assert isinstance(ahead, GuessedAhead)
    assert type(ahead._chooser) is rows
    without = DrawnOnDevice if rows is RowsOnDevice else ChosenOnHost
    assert type(ahead._plain) is without, "the way of the steps without guesses"


def test_an_engine_that_draws_nothing_is_read() -> None:
    assert type(next_token(ScriptedEngine(SAID), Held(), DRAWN, None)) is ChosenOnHost


def ways(engine: DrawingEngine, held: Held) -> dict[str, NextToken]:
    return {
        "host": next_token(engine, held, greedy, None),
        "device": next_token(engine, held, DRAWN, None),
        "rounds": next_token(engine, held, greedy, guessing(engine)),
        "drawn pause": next_token(engine, held, DRAWN, guessing(engine, None)),
    }


@pytest.mark.parametrize("name", ["host", "device", "rounds", "drawn pause"])
@pytest.mark.parametrize("count", range(1, 5))
def test_a_token_is_in_the_state_once_the_next_is_asked_for(name: str, count: int) -> None:
    engine, held = DrawingEngine(SAID), Held([2, 3])
    way = ways(engine, held)[name]
    token_id = way.first(engine.prefill([2, 3]))
    found = [token_id]
    while len(found) < count:
        token_id = way.after(token_id)
        found.append(token_id)
    way.close()
    way.close()
    assert found == SAID[:count]
    assert engine.held == held.keys == [2, 3, *SAID[: count - 1]]
    assert not held.in_forward


def test_a_guess_that_does_not_come_true_is_taken_back_and_counted() -> None:
    class Wrong(GuessingEngine):
        def advance(self, token_id: int, drafts: int) -> tuple[list[int], LogitRows]:
            guesses, rows = super().advance(token_id, drafts)
            self.held[-2:] = guesses[-2:] = [99, 99]
            return guesses, rows

    engine, held = Wrong(SAID), Held([2])
    found = guessing(engine)
    way = next_token(engine, held, greedy, found)
    tokens = [way.first(engine.prefill([2]))]
    for _ in range(3):
        tokens.append(way.after(tokens[-1]))
    assert tokens == SAID[:4]
    assert engine.held == held.keys == [2, *SAID[:3]], "11, and two guesses of four"
    assert (found.drafting.guessed, found.drafting.accepted) == (4, 2)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_chooser_that_fails_leaves_a_state_that_is_known(fails_at: int) -> None:
    chosen: list[int] = []

    def failing(logits: Float32Array) -> int:
        if len(chosen) > fails_at:
            raise ValueError("no token is allowed")
        chosen.append(int(np.argmax(logits)))
        return chosen[-1]

    engine, held = GuessingEngine(SAID), Held([2])
    way = next_token(engine, held, failing, guessing(engine))
    token_id = way.first(engine.prefill([2]))
    for _ in range(fails_at):
        token_id = way.after(token_id)
    with pytest.raises(ValueError, match="no token is allowed"):
        way.after(token_id)
    assert engine.held == held.keys
    assert END_OF_TURN not in held.keys
    assert not held.in_forward
