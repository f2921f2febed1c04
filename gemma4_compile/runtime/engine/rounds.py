"""Rounds of speculative decoding: the model on a token and on guesses of what follows it."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, view
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Float32Array, Peek
from gemma4_compile.runtime.speculative.drafter import Drafter, Drafters


class Rows:
    """Logits of several tokens, on the device until they are asked for."""

    def __init__(self, device: Device, logits: tvm_ffi.Tensor) -> None:
        self._device, self._logits = device, logits

    def read(self, row: int) -> Float32Array:
        """The logits (vocab_size,) of a row; right until the next forward."""
        vocab = int(self._logits.shape[-1])
        return self._device.read(view(self._logits, (vocab,), 4 * vocab * row))


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
        logits, rows = self._run(token_id, drafts)
        return self.drafter.read(rows)[0][1:], Rows(self._device, logits)

    def advance_drawn(
        self, token_id: int, drafts: int, options: DrawOptions, peek: Peek
    ) -> tuple[list[int], list[int]]:
        """As `advance`; return the guesses, and a token drawn on the device from each row."""
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

    def put(self, ids: Listed[int]) -> None:
        """Let these be the tokens that run next."""
        self.drafter.put(ids)
        if self._runner.window is not None:
            self._runner.window.put(ids)

    def _run(self, token_id: int, drafts: int) -> tuple[tvm_ffi.Tensor, int]:
        """Launch guesses and the model on them; logits (1, n, vocab_size), and n."""
        if drafts < 0:
            raise UsageError(f"advance: expected 0 guesses or more, found {drafts}")
        self._runner.check(self._sequence, [token_id])
        sequence, drafter = self._sequence, self.drafter
        position, is_ready = sequence.length, self._ready_at == sequence.version
        room = sequence.context_length - position - 1
        count = min(drafts, self.most_drafts, room) if is_ready else 0
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
