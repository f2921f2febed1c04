"""Rounds of guesses or joint steps, for times and guesses that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime.speculative.draft_pace import DraftPace
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns, Turn


class Played:
    """Replies beside each other, with times in steps of one reply.

    Attributes
    ----------
    tokens, seconds : what they had, and what that took
    rounds : turns that were rounds
    """

    def __init__(self, seed: int = 0) -> None:
        self.turns = DraftTurns()
        self.random = np.random.default_rng(seed)
        self.tokens, self.seconds, self.rounds = 0, 0.0, 0
        self.has_state = False

    def turn(self, replies: int, step_s: float, round_s: float, come_true: int) -> None:
        if not self.turns.pays(replies):
            seconds = self._scattered(step_s)
            self.turns.note_step(replies, seconds)
            self._count(replies, seconds)
            self.has_state = False
            return
        for _ in range(replies):
            tokens = 1 + come_true if self.has_state else 1
            seconds = self._scattered(round_s if self.has_state else 1.0)
            self.turns.note_round(3 if self.has_state else 0, tokens, seconds)
            self._count(tokens, seconds)
        self.has_state, self.rounds = True, self.rounds + 1

    def _count(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    def _scattered(self, seconds: float) -> float:
        hiccup = 20.0 if self.random.random() < 0.02 else 0.0
        return seconds * float(self.random.uniform(0.9, 1.1)) + hiccup

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@pytest.mark.parametrize(
    ("replies", "step_s", "come_true", "pay"),
    [
        (1, 1.0, 2, True),
        (2, 1.1, 2, True),
        (2, 1.1, 0, False),
        (4, 1.4, 2, False),
        (8, 2, 3, False),
    ],
)
def test_what_gives_more_tokens_is_taken(
    replies: int, step_s: float, come_true: int, pay: bool
) -> None:
    """Rounds of three guesses that take 1.4 steps, and give 1 to 4 tokens."""
    played = Played()
    for _ in range(2000):
        played.turn(replies, step_s, 1.4, come_true)
    assert (played.rounds > 1900) == pay
    assert pay or played.rounds < 200, "trials alone"


def test_a_change_of_the_texts_is_noticed() -> None:
    played = Played()
    for _ in range(300):
        played.turn(2, 1.1, 1.4, 3)
    assert played.rounds > 280
    begin = played.rounds
    for _ in range(500):
        played.turn(2, 1.1, 1.4, 0)
    assert played.rounds - begin < 100
    begin = played.rounds
    for _ in range(2000):
        played.turn(2, 1.1, 1.4, 3)
    assert played.rounds - begin > 500


def test_rounds_that_make_no_guesses_are_given_up() -> None:
    turns = DraftTurns()
    for _ in range(4):
        turns.note_step(2, 1.0)
    tried = 0
    while turns.pays(2):
        turns.note_round(0, 1, 1.0)
        tried += 1
    assert 0 < tried < 100


def test_each_number_of_replies_is_timed_before_rounds_are_tried() -> None:
    turns = DraftTurns()
    for _ in range(20):
        turns.note_step(2, 1.0)
    assert [turns.pays(replies) for replies in (1, 2, 3)] == [False, True, False]


def test_rounds_without_hope_are_tried_seldom() -> None:
    """Those of a reply alone gave 1.5 tokens a step: too few for four, and enough for one."""
    trials = {replies: 0 for replies in (1, 4)}
    for replies in trials:
        turns, tried = DraftTurns(), False
        for _ in range(900):
            pays = turns.pays(replies, 1.5)
            trials[replies] += pays and not tried
            tried = pays
            if pays:
                turns.note_round(3, 1, 1.4)  # none comes true
            else:
                turns.note_step(replies, 1.2)
    assert trials[4] == 0
    assert trials[1] > 1
    for _ in range(1024):
        turns.note_step(4, 1.2)
    assert turns.pays(4, 1.5), "texts change"


def test_what_is_hoped_for_is_what_rounds_gave_with_their_error() -> None:
    pace = DraftPace.of(None, 8)
    assert pace.hoped_rate is None
    for _ in range(6):
        pace.note_step(1.0)
    for _ in range(400):
        pace.note_round(3, 3, 2.0)
    assert pace.hoped_rate is not None
    assert pace.hoped_rate >= 4 / 2.0
    assert DraftPace.of(3, 8).hoped_rate is None, "a fixed number is not timed"


class PlayedTogether:
    """Replies beside each other that may share a forward for their guesses, in steps of one.

    Attributes
    ----------
    taken : the turns that they had
    """

    def __init__(self) -> None:
        self.turns = DraftTurns()
        self.random = np.random.default_rng(0)
        self.taken: list[Turn] = []
        self.has_state = False

    def play(
        self, replies: int, step_s: float, round_s: float, joint_s: float, come_true: int
    ) -> None:
        """A turn; of rounds in turns so many guesses come true, of those in one forward one."""
        turn = self.turns.turn(replies, None, joins=True)
        self.taken.append(turn)
        scatter = float(self.random.uniform(0.9, 1.1))
        match turn:
            case Turn.STEP:
                self.turns.note_step(replies, step_s * scatter)
            case Turn.ROUNDS:
                for _ in range(replies):
                    guesses, tokens = (3, 1 + come_true) if self.has_state else (0, 1)
                    self.turns.note_round(guesses, tokens, round_s * scatter)
            case Turn.JOINT_ROUND:
                each = (1, 1 + min(come_true, 1)) if self.has_state else (0, 1)
                guesses, tokens = (replies * one for one in each)
                self.turns.note_joint_round(replies, guesses, tokens, joint_s * scatter)
        self.has_state = turn is not Turn.STEP


@pytest.mark.parametrize(
    ("step_s", "round_s", "joint_s", "come_true", "best"),
    [
        (1.4, 1.4, 1.6, 3, Turn.JOINT_ROUND),
        (1.4, 1.4, 1.6, 0, Turn.STEP),
        (1.4, 1.4, 3.0, 1, Turn.STEP),
        (1.4, 0.9, 2.4, 3, Turn.ROUNDS),
    ],
)
def test_the_fastest_of_three_ways_is_taken(
    step_s: float, round_s: float, joint_s: float, come_true: int, best: Turn
) -> None:
    """Of four replies, whose rounds in one forward have one guess each."""
    played = PlayedTogether()
    for _ in range(4000):
        played.play(4, step_s, round_s, joint_s, come_true)
    assert played.taken[:4] == [Turn.STEP] * 4, "the first ones are timed"
    share = played.taken[1000:].count(best) / 3000
    assert share > 0.85
    played.taken.clear()
    for _ in range(4000):  # and what was learnt is learnt anew
        played.play(4, 1.0, 2.0, 1.1, 1)
    assert played.taken[2000:].count(Turn.JOINT_ROUND) > 1000


def test_without_a_forward_for_all_there_are_rounds_in_turns_or_steps() -> None:
    turns = DraftTurns()
    taken = []
    for _ in range(6):
        taken.append(turns.turn(2, None, joins=False))
        turns.note_step(2, 1.0)
    assert taken == [Turn.STEP] * 4 + [Turn.ROUNDS] * 2
    assert turns.turn(2, None, joins=True) is Turn.JOINT_ROUND


def test_joint_rounds_that_make_no_guesses_are_given_up() -> None:
    turns = DraftTurns()
    for _ in range(4):
        turns.note_step(2, 1.0)
    tried = 0
    while turns.turn(2, 0.001, joins=True) is Turn.JOINT_ROUND:
        turns.note_joint_round(2, 0, 2, 1.0)
        tried += 1
    assert 0 < tried < 100


def test_a_step_takes_about_as_long_as_one_of_the_nearest_number_that_was_timed() -> None:
    turns = DraftTurns()
    turns.note_step(2, 9.0)
    assert turns.step_seconds(2) is None, "the first one has a graph to record"
    for replies, seconds in ((2, 2.0), (5, 1.0), (5, 5.0)):
        turns.note_step(replies, seconds)
    assert [turns.step_seconds(replies) for replies in (1, 2, 3, 4, 5, 7)] == [2, 2, 2, 5, 5, 5]
