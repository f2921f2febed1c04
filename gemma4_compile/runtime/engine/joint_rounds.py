"""Rounds of guesses that several sequences share: the model runs on all of their tokens at once."""

from __future__ import annotations

import os
from collections.abc import Sequence as Listed

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.rounds import Checked, Rounds
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.joint_guesses import JointGuesses
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS, JointSteps
from gemma4_compile.runtime.library.steps import Parameters

SWITCH = "GEMMA4_JOINT_ROUNDS"
RIDERS = "GEMMA4_RIDERS"


def shares_rounds() -> bool:
    """Return whether rounds may share a forward: unless the environment forbids it."""
    return os.environ.get(SWITCH, "1") != "0"


def lets_ride(model: LoadedModel) -> bool:
    """Return whether a prompt's last rows may share replies' steps.

    On a CPU where they are summed as a chunk's, so that logits do not depend on who is there, or if
    the environment asks for it; on a GPU unless it forbids it.
    """
    asked = os.environ.get(RIDERS)
    if asked is not None:
        return asked == "1"
    return model.rows_as_chunks or not model.device.is_cpu


def steps_of_rows(model: LoadedModel, *, graphs: bool) -> JointSteps | None:
    """The calls for some tokens of each of several sequences.

    None where the library has none of this kind, or they are off.
    """
    if model.kv.sequences < 2 or not model.library.has(abi.VERIFY_ROWS) or not shares_rounds():
        return None
    shared = model.library, model.device, model.kv.handle, model.params
    return JointSteps(*shared, graphs=graphs, function=abi.VERIFY_ROWS)


def guesses_of_rows(
    model: LoadedModel, own_params: Parameters, *, graphs: bool
) -> JointGuesses | None:
    """The calls for guesses of several sequences; None where the library has none of this kind.

    `own_params` : weights of the drafter
    """
    if not model.library.has(abi.DRAFT_ROWS):
        return None
    shared = model.library, model.device, model.kv.handle, model.params
    return JointGuesses(*shared, own_params, graphs=graphs)


class JointRounds:
    """Begins rounds of several sequences, whose tokens and guesses one forward checks.

    Guesses of all are made in one forward each, or in libraries of before for one sequence after
    the other.

    Attributes
    ----------
    steps : the calls; None as of `steps_of_rows`
    guesses : those of guesses; None as of `guesses_of_rows`
    """

    def __init__(
        self,
        model: LoadedModel,
        runner: ModelRunner,
        context_length: int,
        steps: JointSteps | None,
        guesses: JointGuesses | None,
    ) -> None:
        """Take the model, and its calls."""
        self._runner, self.steps, self.guesses = runner, steps, guesses
        self._rows = min(MOST_ROWS, model.prefill_chunk, context_length)

    def most_guesses(self, sequences: int) -> int:
        """Guesses of each of so many sequences, at most; 0 where they share no forward."""
        if self.steps is None or sequences < 2:
            return 0
        return max(self._rows // sequences - 1, 0)

    def begin(self, rounds: Listed[Rounds], token_ids: Listed[int], drafts: int) -> None:
        """Add to each sequence a token and guesses; the next `advance` of each tells of them.

        As many guesses as that would make, which is none in the first round after other tokens.

        Parameters
        ----------
        rounds : of different sequences, two or more
        token_ids : the one that was chosen last for each
        drafts : guesses of each that are wished for, no more than `most_guesses`

        Raises
        ------
        ContextFullError
            If there is no room in one of them; nothing is added to any.
        UsageError
            If one is named twice, is within a round, or is given no token of the vocabulary; or
            there are too few, or too many guesses for them. Nothing is added to any.
        """
        if len({one.sequence for one in rounds}) < len(rounds):
            raise UsageError("rounds of several sequences: a sequence is named twice")
        most = self.most_guesses(len(rounds))
        if self.steps is None or not 0 < drafts <= most:
            raise UsageError(
                f"rounds of {len(rounds)} sequences: expected 1 to {most} guesses, found {drafts}"
            )
        for one, token_id in zip(rounds, token_ids, strict=True):
            one.check(token_id)
        guesses = self._guess(rounds, token_ids, drafts)
        tokens = [[token, *own] for token, own in zip(token_ids, guesses, strict=True)]
        ids = [token_id for own in tokens for token_id in own]
        if self._runner.window is not None:
            self._runner.window.put(ids)
        sequences, counts = [one.sequence for one in rounds], [len(own) for own in tokens]
        Sequence.begin_rounds(sequences, counts)
        logits, states = self.steps.run(ids)
        Sequence.end_rounds(sequences, counts)
        first = 0
        for one, own in zip(rounds, tokens, strict=True):
            version = one.sequence.version
            one.note_checked(Checked(own[0], own[1:], logits, states, first, version))
            first += len(own)

    def _guess(
        self, rounds: Listed[Rounds], token_ids: Listed[int], drafts: int
    ) -> list[list[int]]:
        """Guesses of what follows each token; all of a sequence are made at the token's position.

        So one that has room for fewer takes as many as the others, and those behind are left out.
        """
        pairs = list(zip(rounds, token_ids, strict=True))
        counts = [one.count(drafts) for one in rounds]
        guessing = [pair for pair, count in zip(pairs, counts, strict=True) if count]
        if self.guesses is None or len(guessing) < 2:
            return [one.guess(token_id, drafts) for one, token_id in pairs]
        sequences = [one.sequence for one, _ in guessing]
        states = [one.drafter.state for one, _ in guessing]
        Sequence.begin_rounds(sequences, [1] * len(sequences))
        found = iter(self.guesses.guess([token for _, token in guessing], states, max(counts)))
        Sequence.end_guesses(sequences)
        return [next(found)[:count] if count else [] for count in counts]
