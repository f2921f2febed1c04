"""Three ways to the next token of a reply: chosen on the host, drawn on the device, guessed ahead.

Each is a strategy that is told the token that was chosen last, adds it to the state, and returns
the one that follows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gemma4_compile.runtime.engine.token_engine import (
    DeviceSampling,
    DrawnTokens,
    Rounds,
    TokenEngine,
)
from gemma4_compile.runtime.sampling.sampling import (
    DrawOptions,
    Float32Array,
    Sampler,
    TokenChooser,
)
from gemma4_compile.runtime.speculative.draft_pace import Drafting, DraftPace


@dataclass
class Held:
    """What the state of an engine holds, as far as is known.

    Attributes
    ----------
    keys : of its tokens, as `Prompt.keys` numbers them
    prompt : how many of these are a prompt, once its end was told to who keeps beginnings
    in_forward : a forward has begun and not ended; it stays so where Ctrl-C or an error ended it
    """

    keys: list[int] = field(default_factory=list)
    prompt: int | None = None
    in_forward: bool = False

    def end_forward(self, *keys: int) -> None:
        """Note that a forward added these."""
        self.keys += keys
        self.in_forward = False


class NextToken(Protocol):
    """A way to the tokens of a reply."""

    @property
    def in_round(self) -> bool:
        """Return whether the next token comes from a forward that has been, of a token and guesses.

        Another sequence's forward may then have to wait: it can write where this one's logits are.
        """

    def first(self, logits: Float32Array) -> int:
        """The first token, after a prompt whose logits these are."""

    def after(self, token_id: int) -> int:
        """Add the token that was returned last, and return the one after it."""

    def close(self) -> None:
        """End the state before the token that was returned last; may be called again."""


class ChosenOnHost:
    """Logits are read, and a chooser chooses from them."""

    in_round = False

    def __init__(self, engine: TokenEngine, held: Held, chooser: TokenChooser) -> None:
        self._engine, self._held, self._chooser = engine, held, chooser

    def first(self, logits: Float32Array) -> int:
        """The first token."""
        return self._chooser(logits)

    def after(self, token_id: int) -> int:
        """Add a token and return the next."""
        self._held.in_forward = True
        logits = self._engine.decode(token_id)
        self._held.end_forward(token_id)
        return self._chooser(logits)

    def close(self) -> None:
        """Nothing is to be done."""


class DrawnOnDevice:
    """The device draws from the logits that lie there: a step is launched ahead of its token."""

    in_round = False

    def __init__(
        self, sampling: DeviceSampling, held: Held, sampler: Sampler, options: DrawOptions
    ) -> None:
        self._sampling, self._held = sampling, held
        self._sampler, self._options = sampler, options
        self._drawn: DrawnTokens | None = None

    def first(self, logits: Float32Array) -> int:
        """The first token."""
        del logits  # the device has them
        return self._next(None)

    def after(self, token_id: int) -> int:
        """Add a token and return the next."""
        if self._drawn is None:
            following = self._next(token_id)
            self._held.keys.append(token_id)
            return following
        self._held.keys.append(token_id)
        return self._next(None)

    def close(self) -> None:
        """Take back the step that was launched ahead."""
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None

    def _next(self, token_id: int | None) -> int:
        self._held.in_forward = True
        if self._drawn is None:
            random = self._sampler.random
            self._drawn = self._sampling.sampled(*self._options, random, token_id)
        following = next(self._drawn)
        self._held.in_forward = False
        return following


@dataclass(frozen=True)
class Guessing:
    """What guesses ahead.

    Attributes
    ----------
    pace : how many tokens are guessed in a round
    drafting : counts what becomes of them
    """

    rounds: Rounds
    pace: DraftPace
    drafting: Drafting


Choose = Callable[[int], int]
"""The token that follows a row of a round; called for one row after the other."""


class RoundChooser(Protocol):
    """Begins rounds and chooses their tokens."""

    def first(self, logits: Float32Array) -> int:
        """The token after a prompt."""

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Choose]:
        """Add a token and guesses; return these, and what chooses from the rows."""


class RowsOnHost:
    """Chooses from the logits of each row."""

    def __init__(self, rounds: Rounds, chooser: TokenChooser) -> None:
        self._rounds, self._chooser = rounds, chooser

    def first(self, logits: Float32Array) -> int:
        """The token after a prompt."""
        return self._chooser(logits)

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Choose]:
        """Add a token and guesses."""
        guesses, rows = self._rounds.advance(token_id, drafts)
        return guesses, lambda row: self._chooser(rows.read(row))


class RowsOnDevice:
    """Has the device draw a token from every row, with the random numbers that come next."""

    def __init__(
        self, rounds: Rounds, sampling: DeviceSampling, sampler: Sampler, options: DrawOptions
    ) -> None:
        self._rounds, self._sampling = rounds, sampling
        self._sampler, self._options = sampler, options

    def first(self, logits: Float32Array) -> int:
        """The token after a prompt."""
        del logits  # the device has them
        return self._sampling.draw_last(self._options, self._sampler.random())

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Choose]:
        """Add a token and guesses."""
        sampler = self._sampler
        guesses, drawn = self._rounds.advance_drawn(token_id, drafts, self._options, sampler.peek)

        def choose(row: int) -> int:
            sampler.random()  # it was drawn with this number, which is used up only now
            return drawn[row]

        return guesses, choose


@dataclass
class _Round:
    """A round whose tokens are being chosen."""

    guesses: list[int]
    choose: Choose
    begin_s: float
    accepted: int = 0
    is_shared: bool = False  # its forward was that of others, too
    given_s: float = 0.0  # when the last token was returned
    outside_s: float = 0.0  # that the reader of the tokens took


class GuessedAhead:
    """Several tokens by a forward where guesses come true; without guesses where they do not pay.

    A round has one forward of the model for several tokens: the one that was chosen last, and what
    the drafter guesses to follow it. Each of them gives logits. A token is drawn from the logits of
    the first as always; if it is what was guessed, another is drawn from the next, and so on. So
    every token is drawn from the very distribution that it would have without guesses, by the same
    sampler in the same order: temperature, top-k, top-p, penalties, biases and grammars need no
    rule of their own. Where the device draws, it does so from all rows at once, with the random
    numbers that come next; those of the rows that are not used are kept for later tokens. For a
    guess that is certain, as these are, that is the rejection rule of speculative sampling: a guess
    d is taken with probability p(d), and otherwise the token has the distribution p without d.
    """

    def __init__(
        self, guessing: Guessing, chooser: RoundChooser, plain: NextToken, held: Held
    ) -> None:
        """Begin without a round; `plain` is the way while there are no guesses."""
        self._guessing, self._chooser, self._plain = guessing, chooser, plain
        self._held, self._pace = held, guessing.pace
        self._round: _Round | None = None

    @property
    def in_round(self) -> bool:
        """Return whether a guess came true, and the token after it is still to be chosen."""
        return self._round is not None

    def first(self, logits: Float32Array) -> int:
        """The first token."""
        return self._chooser.first(logits)

    def after(self, token_id: int) -> int:
        """Add a token and return the next."""
        round_ = self._round
        if round_ is not None:  # the token was guessed, and is in the state
            round_.outside_s += time.perf_counter() - round_.given_s
            self._held.keys.append(token_id)
            round_.accepted += 1
        elif self._pace.count or self._guessing.rounds.is_checked:
            round_ = self._round = self._begin(token_id)
        else:
            return self._step(token_id)
        try:
            following = round_.choose(round_.accepted)
        except BaseException:
            self.close()
            raise
        if round_.guesses[round_.accepted : round_.accepted + 1] != [following]:
            self.close()
            self._note(round_)
        round_.given_s = time.perf_counter()
        return following

    def close(self) -> None:
        """Take back the guesses of a round that did not come true, or were not asked for."""
        self._plain.close()
        round_, self._round = self._round, None
        if round_ is not None:
            self._guessing.rounds.accept(round_.accepted)
            self._held.in_forward = False
            self._guessing.drafting.note(len(round_.guesses), round_.accepted)

    def _note(self, round_: _Round) -> None:
        guesses, accepted = len(round_.guesses), round_.accepted
        if round_.is_shared:  # it took no time of a round alone
            self._pace.note_shared_round(guesses, accepted)
        else:
            seconds = time.perf_counter() - round_.begin_s - round_.outside_s
            self._pace.note_round(guesses, accepted, seconds)

    def _begin(self, token_id: int) -> _Round:
        begin, is_shared = time.perf_counter(), self._guessing.rounds.is_checked
        self._held.in_forward = True
        guesses, choose = self._chooser.advance(token_id, self._pace.count)
        self._held.keys.append(token_id)
        return _Round(guesses, choose, begin, is_shared=is_shared)

    def _step(self, token_id: int) -> int:
        """The token after this one without guesses; the first of the next round where it ends."""
        begin = time.perf_counter()
        following = self._plain.after(token_id)
        self._guessing.drafting.steps += 1
        self._pace.note_step(time.perf_counter() - begin)
        if self._pace.count:
            self._plain.close()
        return following


def next_token(
    engine: TokenEngine, held: Held, chooser: TokenChooser, guessing: Guessing | None
) -> NextToken:
    """The fastest way to the tokens of a reply that this chooser allows on this engine."""
    sampling = engine.sampling
    if isinstance(chooser, Sampler) and sampling is not None and sampling.is_faster:
        options = chooser.round_options if guessing else chooser.device_options
        if options is not None:
            on_device = DrawnOnDevice(sampling, held, chooser, options)
            if guessing is None:
                return on_device
            drawn = RowsOnDevice(guessing.rounds, sampling, chooser, options)
            return GuessedAhead(guessing, drawn, on_device, held)
    on_host = ChosenOnHost(engine, held, chooser)
    if guessing is None:
        return on_host
    return GuessedAhead(guessing, RowsOnHost(guessing.rounds, chooser), on_host, held)
