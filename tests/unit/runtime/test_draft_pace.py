"""How many tokens are guessed: more where guesses come true, none where they do not pay."""

from __future__ import annotations

from gemma4_compile.runtime.draft_pace import FIRST, Drafting, DraftPace


def measured(most: int = 8, plain_s: float = 1.0) -> DraftPace:
    """A pace that knows what a step without guesses takes."""
    pace = DraftPace.of(None, most)
    while not pace.count:
        pace.note_step(plain_s)
    return pace


def test_a_wish_is_kept_whatever_comes_true() -> None:
    pace = DraftPace.of(5, 8)
    for _ in range(50):
        assert pace.count == 5
        pace.note_round(5, 0, 100.0)


def test_a_wish_ends_where_the_library_does() -> None:
    assert DraftPace.of(8, 3).count == 3


def test_the_first_steps_are_plain_to_know_what_they_cost() -> None:
    pace = DraftPace.of(None, 8)
    assert pace.count == 0
    pace.note_step(9.0)
    assert pace.count == 0
    pace.note_step(1.0)
    assert pace.count == FIRST


def test_more_are_guessed_while_all_come_true_and_fewer_when_few_do() -> None:
    pace = measured()
    for expected in (4, 5, 6, 7, 8, 8):
        pace.note_round(pace.count, pace.count, 1.0)
        assert pace.count == expected
    for _ in range(20):
        pace.note_round(pace.count, 0, 0.1)
    assert pace.count == 1


def test_a_round_that_the_context_cut_short_says_nothing_against_more() -> None:
    pace = measured()
    pace.note_round(5, 5, 1.0)
    pace.note_round(1, 1, 1.0)
    assert pace.count == 7


def test_guesses_that_do_not_pay_pause_and_each_pause_is_longer() -> None:
    pace = measured()
    pauses: list[int] = []
    for _ in range(3):
        rounds = 0
        while pace.count:
            pace.note_round(pace.count, 0, 1.5)  # a token for more than a plain step takes
            rounds += 1
        assert rounds == (8 if pauses else 8 + 3), (
            "first rounds of 3, 2 and 1 guesses are not timed"
        )
        pause = 0
        while not pace.count:
            pace.note_step(1.0)
            pause += 1
        pauses.append(pause)
    assert pauses == [64, 128, 256]


def test_guesses_that_pay_go_on() -> None:
    pace = measured()
    for _ in range(100):
        pace.note_round(pace.count, 1, 1.5)  # two tokens for less than two plain steps take
        assert pace.count > 0


def test_counts_are_of_a_reply_and_a_step_has_at_least_one_token() -> None:
    counts = Drafting(2, 4, 1)
    counts.note(4, 3)
    assert (counts.steps, counts.guessed, counts.accepted) == (3, 8, 4)
    assert counts.tokens_per_step == 7 / 3
    assert counts.since(Drafting(2, 4, 1)) == Drafting(1, 4, 3)
    assert Drafting().tokens_per_step == 0.0
