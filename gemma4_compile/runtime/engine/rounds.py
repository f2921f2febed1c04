"""Rounds of speculative decoding: the model on a token and on guesses of what follows it."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Float32Array, Peek
from gemma4_compile.runtime.speculative.drafter import Drafter, Drafters


class Rows:
    """Logits of several tokens, on the device until they are asked for."""

    def __init__(self, device: Device, logits: tvm_ffi.Tensor, first: int = 0) -> None:
        self._device, self._logits, self._first = device, logits, first

    def read(self, row: int) -> Float32Array:
        """The logits (vocab_size,) of a row; right until the next forward."""
        vocab = int(self._logits.shape[-1])
        place = 4 * vocab * (self._first + row)
        return self._device.read(view(self._logits, (vocab,), place))


@dataclass(frozen=True)
class Checked:
    """A round whose forward has been, beside those of other sequences.

    Attributes
    ----------
    token_id, guesses : its tokens
    logits : (1, n, vocab_size), of all rows of the forward
    states : (n, hidden_size), likewise
    first : the first of its rows
    version : of the sequence after the forward; with another one the round is over
    """

    token_id: int
    guesses: list[int]
    logits: tvm_ffi.Tensor
    states: tvm_ffi.Tensor
    first: int
    version: int


class Rounds:
    """The drafter and the model in turns, on one sequence; others have rounds of their own.

    Attributes
    ----------
    drafts : guesses of a round that are wished for; None for as many as pay
    most_drafts : guesses of a round, at most; 0 where a forward takes one token alone
    """

    def __init__(
        self,
        model: LoadedModel,
        runner: ModelRunner,
        sequence: Sequence,
        drafters: Drafters,
        drafts: int | None,
    ) -> None:
        """Begin without a state to guess from."""
        self.drafts = drafts
        self._model, self._drafters = model, drafters
        self._device, self._runner, self._sequence = model.device, runner, sequence
        chunk = min(model.prefill_chunk, sequence.context_length)
        self.most_drafts = min(MAX_DRAFTS, chunk - 1)
        self._ready_at: int | None = None  # version of the sequence whose end the drafter knows
        self._checked: Checked | None = None

    @property
    def drafter(self) -> Drafter:
        """What guesses, with the state of the slot."""
        return self._drafters.of(self._sequence.slot)

    def beside(self, sequence: Sequence) -> Rounds:
        """Rounds of another sequence of the engine."""
        return Rounds(self._model, self._runner, sequence, self._drafters, self.drafts)

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Rows]:
        """Add a token and guesses of what follows it; return these and the logits of all.

        Row i of the logits follows guess i - 1, and row 0 the token. `accept` is called next. There
        are fewer guesses than asked for where the context ends, and none in the first round after
        tokens that were added otherwise.
        """
        checked = self._take_checked(token_id)
        if checked is not None:
            return checked.guesses, Rows(self._device, checked.logits, checked.first)
        logits, rows = self._run(token_id, drafts)
        return self.drafter.read(rows)[0][1:], Rows(self._device, logits)

    def advance_drawn(
        self, token_id: int, drafts: int, options: DrawOptions, peek: Peek
    ) -> tuple[list[int], list[int]]:
        """As `advance`; return the guesses, and a token drawn on the device from each row."""
        checked = self._take_checked(token_id)
        if checked is not None:
            rows = len(checked.guesses) + 1
            self.drafter.draw(self._rows_of(checked), options, peek(rows))
            return checked.guesses, self.drafter.read(rows)[1]
        logits, rows = self._run(token_id, drafts)
        self.drafter.draw(logits, options, peek(rows))
        ids, drawn = self.drafter.read(rows)
        return ids[1:], drawn

    def accept(self, count: int) -> None:
        """Keep the token and the first `count` guesses of `advance`, and take the others back.

        UsageError if there was no round, or it had fewer guesses.
        """
        self._sequence.keep(count)
        self.drafter.keep(count)
        self._ready_at = self._sequence.version

    @property
    def sequence(self) -> Sequence:
        """The sequence that they are of."""
        return self._sequence

    @property
    def is_checked(self) -> bool:
        """Return whether the forward of the next round has been, beside those of others."""
        return self._checked is not None and self._checked.version == self._sequence.version

    def check(self, token_id: int) -> None:
        """Errors of a round that begins with this token."""
        self._runner.check(self._sequence, [token_id])

    def guess(self, token_id: int, drafts: int) -> list[int]:
        """Guesses of what follows a token, which is not added; as many as `advance` would make."""
        count = self.count(drafts)
        if not count:
            return []
        position = self._sequence.length
        self._sequence.begin(1)
        self.drafter.guess(token_id, position, count)
        Sequence.end_guesses([self._sequence])
        return self.drafter.read(count + 1)[0][1:]

    def note_checked(self, checked: Checked) -> None:
        """Let `advance` take its round from a forward that has been."""
        self._checked = checked

    def _take_checked(self, token_id: int) -> Checked | None:
        """The round whose forward has been, if there is one, with its states at the drafter."""
        if not self.is_checked:
            return None
        checked, self._checked = self._checked, None
        assert checked is not None, "asked above"
        assert checked.token_id == token_id, "the one that was chosen last"
        states, rows = checked.states, len(checked.guesses) + 1
        width = int(states.shape[1])
        own = view(states, (rows, width), 4 * width * checked.first)
        self.drafter.note_states(own)
        return checked

    def _rows_of(self, checked: Checked) -> tvm_ffi.Tensor:
        """Logits of a round's own rows; draws take tensors from the begin of their memory on."""
        vocab = int(checked.logits.shape[2])
        shape = 1, len(checked.guesses) + 1, vocab
        own = view(checked.logits, shape, 4 * vocab * checked.first)
        if not checked.first:
            return own
        copied = self._drafters.copied_logits(shape)
        copy(own, copied)
        return copied

    def put(self, ids: Listed[int]) -> None:
        """Let these be the tokens that run next."""
        self.drafter.put(ids)
        if self._runner.window is not None:
            self._runner.window.put(ids)

    def _run(self, token_id: int, drafts: int) -> tuple[tvm_ffi.Tensor, int]:
        """Launch guesses and the model on them; logits (1, n, vocab_size), and n."""
        self.check(token_id)
        sequence, drafter = self._sequence, self.drafter
        position, count = sequence.length, self.count(drafts)
        sequence.begin(count + 1)
        if count:
            drafter.guess(token_id, position, count)
            if self._runner.window is not None:  # their rows wait for the guesses
                self._runner.window.put(drafter.read(count + 1)[0])
        else:
            self.put([token_id])
        logits = drafter.run(count + 1)
        sequence.end_round(count)
        return logits, count + 1

    def count(self, drafts: int) -> int:
        """Guesses of the next round, where so many are wished for."""
        if drafts < 0:
            raise UsageError(f"advance: expected 0 guesses or more, found {drafts}")
        if self._ready_at != self._sequence.version:
            return 0
        room = self._sequence.context_length - self._sequence.length - 1
        return min(drafts, self.most_drafts, room)
