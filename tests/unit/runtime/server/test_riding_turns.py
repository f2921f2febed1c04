"""A prompt's last rows in turns of a scheduler on scripted engines; no clock is looked at."""

from __future__ import annotations

import time

import pytest

from gemma4_compile.runtime.server.ride_pace import RidePace
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns
from tests.scripted_engine import GuessingEngine, RandomEngine, ScriptedEngine, encode
from tests.scripted_turns import CHUNK, Served, ids, in_loop, replies, told


class Riding(RidePace):
    """Rows of a prompt ride where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pay = True
        self.told: list[int] = []
        self.seconds: list[float] = []
        self.chunks = 0

    def pays(self, rows: int, turns: int, step_s: float | None) -> bool:
        return self.pay

    def note_ride(self, rows: int, seconds: float) -> None:
        self.told.append(rows)
        self.seconds.append(seconds)

    def note_chunk(self, seconds: float) -> None:
        self.chunks += 1
        self.seconds.append(seconds)


class Asked(RidePace):
    """Notes what steps without riders are known to take."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float | None] = []

    def pays(self, rows: int, turns: int, step_s: float | None) -> bool:
        self.asked.append(step_s)
        return super().pays(rows, turns, step_s)


class Rounds(DraftTurns):
    """Rounds of guesses pay where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pay = True

    def pays(self, replies: int, hoped_rate: float | None = None) -> bool:
        return self.pay


def riding(engines: list[ScriptedEngine]) -> tuple[Served, Riding]:
    served = Served(engines)
    served.sequences.rows = 8
    served.scheduler.rides = rides = Riding()
    return served, rides


def test_a_prompts_last_rows_ride_in_the_step_of_the_others() -> None:
    """Chunks before them are read apart; the first token comes in the same turn."""

    async def body() -> None:
        served, rides = riding(replies(3))
        first = [served.ask(ids(5, seed), most=40) for seed in (1, 2)]
        served.turn(3)
        served.log.clear()
        third = served.ask(ids(CHUNK + 6, 3), most=3)
        served.turn(4)
        assert served.log == [
            *("read 2", "step 0 1"),
            *("step 0 1 + 6 of 2", "step 2"),
            *("step 0 1 2", "step 0 1 2"),
        ]
        assert third in served.ended
        assert rides.told[-1] == 8
        rides.pay = False
        chunks = rides.chunks
        served.log.clear()
        served.ask(ids(4, 4), most=1)
        served.turn()
        assert (served.log, rides.chunks) == (["read 2", "step 0 1 2"], chunks + 1)
        served.finish(*first)
        counts = served.scheduler.counts
        assert counts.ridden_tokens == 6 + 5, "and those of the second prompt, beside the first"
        assert counts.read_tokens == 5 + 5 + CHUNK + 6 + 4

    in_loop(body)


def test_a_ride_and_a_chunk_are_timed_with_all_that_their_turn_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that counts forwards: what was launched ahead is in either time, once."""

    def body() -> None:
        served, rides = riding(replies(3))
        monkeypatch.setattr(time, "perf_counter", lambda: float(len(served.log)))
        for seed in (1, 2):
            served.ask(ids(5, seed), most=40)
        served.turn(3)
        rides.seconds.clear()
        for pay, log in (
            (True, ["step 0 1 + 4 of 2", "step 2"]),
            (False, ["read 2", "step 0 1 2"]),
        ):
            rides.pay = pay
            served.log.clear()
            served.finish(served.ask(ids(4, 3 + pay), most=1))
            assert served.log == log
        assert rides.seconds == [2.0, 2.0]

    in_loop(body)


def test_replies_are_the_same_whether_their_prompts_ride() -> None:
    async def body() -> None:
        texts = []
        for rows in (8, 0):
            served = Served([RandomEngine() for _ in range(3)])
            served.sequences.rows = rows
            served.scheduler.rides = Riding()
            asked = [served.ask(ids(count, count), most=30) for count in (5, 40, 29)]
            served.finish(*asked)
            asked += [served.ask([*ids(40, 40), *ids(9, 1)], most=4) for _ in range(2)]
            served.finish(*asked)
            assert bool(served.scheduler.counts.ridden_tokens) == (rows == 8)
            texts.append([await told(ticket) for ticket in asked])
        assert texts[0] == texts[1]

    in_loop(body)


def test_rows_ride_in_few_steps_or_not_at_all() -> None:
    """Sixteen beside one in three; beside six two at a time, and so no more than six."""

    def body() -> None:
        served, _ = riding(replies(7))
        served.ask(ids(5, 1))
        served.turn(2)
        served.log.clear()
        served.ask(ids(16, 2))
        served.turn(3)
        steps = ["step 0 + 7 of 1", "step 0 + 7 of 1", "step 0 + 2 of 1"]
        assert served.log == [*steps, "step 1"]
        for seed in range(3, 7):
            served.ask(ids(1, seed))
        served.turn(6)
        served.log.clear()
        served.ask(ids(7, 8), most=1)
        served.turn()
        assert served.log[0] == "read 6"
        served.turn()
        served.log.clear()
        served.ask(ids(6, 9), most=1)
        served.turn(3)
        assert served.log == [*["step 0 1 2 3 4 5 + 2 of 6"] * 3, "step 6"]

    in_loop(body)


def test_rows_do_not_ride_beside_rounds_of_guesses_or_alone() -> None:
    async def body() -> None:
        served, rides = riding(list(replies(3)))
        served.finish(served.ask(ids(3, 1), most=2))
        assert "read 0" in served.log
        assert not rides.told, "nobody is there to ride with"
        text = " ".join(["one two three four five six seven eight nine ten"] * 3)
        served, rides = riding([GuessingEngine(encode(text)) for _ in range(3)])
        served.scheduler.draft_turns = turns = Rounds()
        first = [served.ask(ids(3, seed)) for seed in (1, 2)]
        served.turn(3)
        ridden = len(rides.told)
        served.log.clear()
        third = served.ask(ids(3, 3))
        served.turn()
        assert served.log[0] == "read 2"
        assert len(rides.told) == ridden
        turns.pay = False
        served.finish(*first, third)
        assert [await told(ticket) for ticket in (*first, third)] == [text] * 3

    in_loop(body)


def test_a_step_with_riders_that_fails_ends_its_replies_and_theirs() -> None:
    async def body() -> None:
        served, _ = riding([RandomEngine() for _ in range(3)])
        failing = [served.ask(ids(5, seed), most=30) for seed in (1, 2)]
        served.turn(3)
        failing.append(served.ask(ids(4, 3), most=2))

        def fail() -> None:
            raise RuntimeError("the device has an error")

        served.sequences.before_step = fail
        served.turn()
        assert served.log[-1] == "step 0 1 + 4 of 2"
        assert not served.scheduler.runs
        for ticket in failing:
            with pytest.raises(RuntimeError, match="device has an error"):
                await told(ticket)
        served.sequences.before_step = lambda: None
        assert served.scheduler.counts.ridden_tokens == 5
        served.finish(*[served.ask(ids(4, 3), most=2) for _ in range(3)])

    in_loop(body)


def test_a_prompt_that_is_cancelled_between_two_rides_leaves_its_slot() -> None:
    async def body() -> None:
        served, _ = riding([RandomEngine() for _ in range(2)])
        first = served.ask(ids(5, 1), most=30)
        served.turn(2)
        second = served.ask(ids(12, 2), most=2)
        served.turn()
        assert served.log[-1] == "step 0 + 7 of 1"
        second.cancel()
        served.turn()
        assert served.log[-1] != "step 0 + 5 of 1"
        third = served.ask(ids(12, 2), most=2)
        served.finish(first, third)
        expected = Served([RandomEngine()])
        again = expected.ask(ids(12, 2), most=2)
        expected.finish(again)
        assert await told(third) == await told(again)

    in_loop(body)


def test_whether_rows_ride_is_measured_beside_a_reply_that_is_alone_but_for_them() -> None:
    """Such a reply has no joint step of its own, which would leave nothing to compare with."""

    async def body() -> None:
        served = Served(replies(2))
        served.sequences.rows = 8
        served.scheduler.rides = rides = Asked()
        first = served.ask(ids(5, 1), most=60)
        for seed in range(2, 5):
            served.finish(served.ask(ids(4, seed), most=4))
        assert rides.asked[0] is None, "no step was timed yet"
        assert rides.asked[-1] is not None
        served.finish(first)

    in_loop(body)
