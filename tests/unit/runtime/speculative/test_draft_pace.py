"""How many tokens are guessed: as many as give most tokens a second, none where they do not pay."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gemma4_compile.runtime.speculative.draft_pace import (
    FIRST,
    Acceptance,
    Drafting,
    DraftPace,
    RoundTimes,
)

# Times of rounds with 1 to 8 guesses, in steps without guesses, after the lines `round`, `decode`
# of bfcfd7c in benchmarks/results/native.jsonl (E2B, 31B) and of 2db0c95 in browser.jsonl; numbers
# that were not measured are interpolated, or added up of their parts.
E2B = (1.55, 1.70, 1.86, 1.98, 2.08, 2.17, 2.30, 2.85)
DENSE_31B = (1.15, 1.22, 1.31, 1.40, 1.48, 1.55, 1.60, 2.36)
BROWSER = (1.66, 1.81, 2.01, 2.21, 2.32, 2.43, 2.63, 2.84)
LOOPS = tuple(1.0 + n for n in range(1, 9))  # a CPU's: a row costs what a step does
Share = Callable[[random.Random], float]


def measured(most: int = 8, plain_s: float = 1.0) -> DraftPace:
    """A pace that knows what a step without guesses takes."""
    pace = DraftPace.of(None, most)
    while not pace.count:
        pace.note_step(plain_s)
    return pace


def seconds_of(
    pace: DraftPace, times: Sequence[float], share: Share, tokens: int, rng: random.Random
) -> float:
    """Time of a reply, of rounds whose times scatter and of which some are far off."""
    said, clock = 0, 0.0
    while said < tokens:
        count, accepted, expected = pace.count, 0, share(rng)
        noise = rng.uniform(0.95, 1.05) * (5 if rng.random() < 0.005 else 1)
        seconds = noise * (times[count - 1] if count else 1.0)
        while accepted < count and rng.random() < expected:
            accepted += 1
        if count:
            pace.note_round(count, accepted, seconds)
        else:
            pace.note_step(seconds)
        clock, said = clock + seconds, said + accepted + 1
    return clock


def speed(drafts: int | None, times: Sequence[float], share: Callable[[], Share]) -> float:
    """Tokens in the time of a step, of several replies."""
    tokens, seeds = 2000, range(6)
    total = sum(
        seconds_of(DraftPace.of(drafts, 8), times, share(), tokens, random.Random(seed))
        for seed in seeds
    )
    return len(seeds) * tokens / total


def always(value: float) -> Share:
    return lambda _: value


def in_turns(low: float, high: float) -> Share:
    """Text that is hard to guess and text that is easy, of 30 tokens or rounds in the mean."""
    now = [low, high]

    def share(rng: random.Random) -> float:
        if rng.random() < 1 / 30:
            now.reverse()
        return now[0]

    return share


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(lambda: always(0.6), id="60 %", marks=pytest.mark.slow),
        pytest.param(lambda: always(0.7), id="70 %"),
        pytest.param(lambda: always(0.85), id="85 %", marks=pytest.mark.slow),
        pytest.param(lambda: in_turns(0.4, 0.9), id="in turns"),
    ],
)
@pytest.mark.parametrize("times", [E2B, DENSE_31B, BROWSER], ids=["E2B", "31B", "browser"])
def test_replies_are_nearly_as_fast_as_with_the_best_number(
    times: Sequence[float], share: Callable[[], Share]
) -> None:
    best = max(speed(n, times, share) for n in range(1, 9))
    assert best > 1
    assert speed(None, times, share) > 0.94 * best


@pytest.mark.parametrize("times", [E2B, BROWSER, LOOPS], ids=["E2B", "browser", "loops"])
def test_replies_are_nearly_as_fast_as_without_guesses_where_these_do_not_pay(
    times: Sequence[float],
) -> None:
    assert max(speed(n, times, lambda: always(0.25)) for n in range(1, 9)) < 0.9
    assert speed(None, times, lambda: always(0.25)) > 0.95 * speed(0, times, lambda: always(0.25))


def test_both_languages_have_the_same_numbers() -> None:
    traces = json.loads(Path(__file__).with_name("draft_paces.json").read_text())
    for trace in traces:
        pace = DraftPace.of(None, trace["most"])
        while not pace.count:
            pace.note_step(trace["plain"])
        for guessed, accepted, time, expected in trace["rounds"]:
            pace.note_round(guessed, accepted, time)
            assert pace.count == expected, trace["name"]
            while not pace.count:
                pace.note_step(trace["plain"])


def test_a_wish_is_kept_whatever_comes_true() -> None:
    pace = DraftPace.of(5, 8)
    for _ in range(50):
        assert pace.count == 5
        pace.note_round(5, 0, 100.0)


def test_a_wish_ends_where_the_library_does() -> None:
    assert DraftPace.of(8, 3).count == 3


def test_the_first_steps_are_plain_to_know_what_they_cost() -> None:
    pace = DraftPace.of(None, 8)
    for seconds in (9.0, 1.0, 5.0, 1.1):
        assert pace.count == 0
        pace.note_step(seconds)
    assert pace.count == FIRST
    for _ in range(12):
        if pace.count:
            pace.note_round(pace.count, 0, 1.5)
    assert pace.count == 0, "a step takes 1.0, and one of the others was disturbed"


def test_all_are_guessed_where_all_come_true_and_one_where_few_do() -> None:
    pace = measured()
    for _ in range(40):
        pace.note_round(pace.count, pace.count, 1 + 0.05 * pace.count)
    assert pace.count == 8
    for accepted in 30 * (1, 0, 0, 1, 0):
        pace.note_round(pace.count, accepted, 0.6 + 0.5 * pace.count)
    assert pace.count == 1


def test_no_more_are_guessed_than_there_is_room_for() -> None:
    pace = measured(most=2)
    for _ in range(20):
        assert pace.count <= 2
        pace.note_round(pace.count, pace.count, 1.0)
    pace = measured(most=1)
    for _ in range(20):
        pace.note_round(pace.count, 0, 0.5)
        assert pace.count == 1


def test_rounds_that_the_context_cut_short_tell_what_they_are() -> None:
    pace = measured()
    for _ in range(3):
        pace.note_round(3, 3, 1.5)
    for _ in range(3):
        pace.note_round(1, 1, 1.45)  # one token fewer costs nearly the same
    assert pace.count >= 3


def test_guesses_that_do_not_pay_pause_and_each_pause_is_longer() -> None:
    pace = measured()
    pauses: list[int] = []
    for _ in range(6):
        rounds = 0
        while pace.count:
            pace.note_round(pace.count, 0, 1.5)  # a token for more than a plain step takes
            rounds += 1
        assert rounds < 12
        pause = 0
        while not pace.count:
            pace.note_step(1.0)
            pause += 1
        pauses.append(pause)
    assert pauses == [64, 128, 256, 512, 1024, 1024]
    for _ in range(20):
        pace.note_round(pace.count, pace.count, 1.2)
    while pace.count:
        pace.note_round(pace.count, 0, 1.5)
    pause = 0
    while not pace.count:
        pace.note_step(1.0)
        pause += 1
    assert pause == 64, "rounds that paid for a while make pauses short again"


def test_rounds_that_cannot_pay_pause_at_once() -> None:
    pace = measured()
    for _ in range(3):  # the first is not timed, and what a second says is asked again
        assert pace.count == FIRST
        pace.note_round(3, 3, 9.0)
    assert pace.count == 0


def test_guesses_that_pay_go_on() -> None:
    pace = measured()
    for _ in range(100):
        pace.note_round(pace.count, 1, 1.5)  # two tokens for less than two plain steps take
        assert pace.count > 0


def test_times_are_measured_or_lie_between_those_that_are() -> None:
    times = RoundTimes()
    assert times.of(3, 1.0) == pytest.approx(1.15), "little, so that it is tried"
    assert not times.note(3, 50.0, 1.0), "it may have been recorded"
    assert not times.note(3, 50.0, 1.0), "it may have been a hiccup"
    assert times.most == 0
    assert times.note(3, 1.6, 1.0)
    assert times.of(3, 1.0) == pytest.approx(1.6)
    assert times.of(1, 1.0) == pytest.approx(1.2)
    assert times.of(5, 1.0) == pytest.approx(1.7)
    times.note(6, 50.0, 1.0)
    times.note(6, 2.2, 1.0)
    assert times.of(5, 1.0) == pytest.approx(2.0)
    times.note(3, 2.0, 1.0)
    assert times.of(3, 1.0) == pytest.approx(1.7), "a running mean"
    times.note(3, 1000.0, 1.0)
    assert times.of(3, 1.0) == pytest.approx(2.55), "which one time does not spoil"
    for _ in range(64):
        times.note(3, 2.0, 1.0)
    assert times.of(6, 1.0) == pytest.approx(2.15, abs=0.01), "what is old is tried again"
    assert not times.note(7, 40.0, 1.0)
    assert not times.note(7, 40.0, 1.0)
    assert times.note(7, 40.0, 1.0), "no hiccup"
    assert times.of(7, 1.0) == pytest.approx(40.0)


def test_the_share_is_of_guesses_whose_predecessors_came_true() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.note(2, 3)
    assert acceptance.share == pytest.approx(2 / 3, abs=0.01)
    assert acceptance.share < acceptance.hopeful_share < 0.8
    for _ in range(60):
        acceptance.note(0, 1)
    assert acceptance.share < 0.2
    acceptance.forget()
    assert acceptance.share == 0.6


def test_counts_are_of_a_reply_and_a_step_has_at_least_one_token() -> None:
    counts = Drafting(2, 4, 1)
    counts.note(4, 3)
    assert (counts.steps, counts.guessed, counts.accepted) == (3, 8, 4)
    assert counts.tokens_per_step == 7 / 3
    assert counts.since(Drafting(2, 4, 1)) == Drafting(1, 4, 3)
    assert Drafting().tokens_per_step == 0.0
