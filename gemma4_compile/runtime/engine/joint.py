"""Forwards that several sequences share, of a token each: the weights are read once for all."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.device import copy, view
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS, JointDraws, JointSteps
from gemma4_compile.runtime.sampling.sampling import DrawOptions


@dataclass(frozen=True)
class Riders:
    """Rows of a prompt that a forward of other sequences reads, too.

    Attributes
    ----------
    sequence : to which they are added
    ids : their tokens
    ends : whether its logits are asked for: those of the last row alone are kept
    """

    sequence: Sequence
    ids: Listed[int]
    ends: bool = True


class JointRows:
    """Logits that a forward gave of several sequences, right until the next one of as many.

    Attributes
    ----------
    logits : (1, n, vocab_size) float32, on the device
    sequences : those, in the order of the rows; they have no logits until these are kept
    """

    def __init__(
        self,
        logits: tvm_ffi.Tensor,
        sequences: Listed[Sequence],
        runner: ModelRunner,
        draws: JointDraws | None,
    ) -> None:
        """Take what a forward gave."""
        self.logits, self.sequences = logits, sequences
        self._runner, self._draws = runner, draws

    @property
    def can_draw(self) -> bool:
        """Whether the library draws from several rows at once."""
        return self._draws is not None

    def keep(self, first: int, count: int) -> None:
        """Copy rows, each to memory of its slot: they are its sequence's logits."""
        for row in range(first, first + count):
            self.keep_row(row, self.sequences[row])

    def keep_row(self, row: int, sequence: Sequence) -> None:
        """As `keep`, one row, as a sequence's logits."""
        kept = self._runner.steps.kept_logits(sequence.slot)
        copy(view(self.logits, kept.shape, 4 * int(kept.shape[2]) * row), kept)
        sequence.logits = kept

    def draw(self, first: int, options: DrawOptions, uniforms: Listed[float]) -> tvm_ffi.Tensor:
        """Launch draws from rows that have these options, as many as numbers; int32 (n,)."""
        assert self._draws is not None, "see `can_draw`"
        return self._draws.launch(self.logits, first, options, uniforms)


class Joint:
    """Adds a token to each of several sequences, as many in a forward as the library takes.

    Attributes
    ----------
    most : sequences of a forward; 1 where the library takes one at a time
    steps : the calls; None there
    last : what the last forward gave, for one before it may have had the same place for its logits
    """

    def __init__(
        self,
        model: LoadedModel,
        runner: ModelRunner,
        context_length: int,
        *,
        graphs: bool,
        rows: JointSteps | None = None,
    ) -> None:
        """Take the model.

        `rows` : the calls for some tokens of each, as of `JointRounds`
        """
        self._runner = runner
        self._row_steps = rows
        self._most_rows = min(MOST_ROWS, model.prefill_chunk, context_length)
        self.most = 1
        self.steps: JointSteps | None = None
        self._draws: JointDraws | None = None
        self.last: JointRows | None = None
        if model.kv.sequences > 1 and model.library.has(abi.DECODE_ROWS):
            shared = model.library, model.device, model.kv.handle, model.params
            self.steps = JointSteps(*shared, graphs=graphs)
            self.most = self._most_rows
            if model.library.has(abi.DRAW_ROWS):  # libraries of before have it with a drafter only
                self._draws = JointDraws(model.library, model.device)

    def add(self, sequences: Listed[Sequence], tokens: Listed[int]) -> None:
        """Add one token to each, which is known to fit; each gets the logits after it.

        Those are right until the next forward of that sequence. One that is alone in its forward is
        added as it is without others.
        """
        for rows in self.forwards(sequences, tokens):
            rows.keep(0, len(rows.sequences))

    def forwards(self, sequences: Listed[Sequence], tokens: Listed[int]) -> Iterator[JointRows]:
        """As `add`, but what to do with the logits is asked after each forward of several."""
        if not sequences:
            return
        count = -(-len(sequences) // self.most)
        for places in np.array_split(np.arange(len(sequences)), count):
            group = [sequences[place] for place in places]
            own = [tokens[place] for place in places]
            if len(group) == 1:
                self._runner.forward_one(group[0], own[0])
            else:
                yield self._add_together(group, own)

    def add_ahead(self, sequences: Listed[Sequence], drawn: tvm_ffi.Tensor) -> JointRows:
        """Launch the forward after tokens that the device is to draw, int32 (n,), at most `most`.

        All are known to fit. Each sequence is at its last token still, and has this one `ahead`:
        what is returned.
        """
        Sequence.begin_ahead(sequences)
        if len(sequences) == 1:
            sequences[0].logits = None  # a graph has one place for its result
            ids = self._runner.ids.write_from(drawn, (1, 1))
            logits = self._runner.steps.forward(ids, slot=sequences[0].slot)
        else:
            assert self.steps is not None, "else each is alone"
            logits = self.steps.forward_drawn(drawn)
        self.last = JointRows(logits, sequences, self._runner, self._draws)
        Sequence.end_ahead(sequences, self.last)
        return self.last

    def most_riders(self, sequences: int) -> int:
        """Rows of a prompt that a forward of so many others takes besides; 0 for none."""
        if self._row_steps is None or not sequences:
            return 0
        return max(self._most_rows - sequences, 0)

    def add_beside(
        self, sequences: Listed[Sequence], tokens: Listed[int], riders: Riders
    ) -> JointRows:
        """Add one token to each, and rows of a prompt to another one, no more than `most_riders`.

        All are known to fit. Returned are the rows of the tokens, as `forwards` gives them; the
        prompt's logits are kept.
        """
        assert self._row_steps is not None, "see `most_riders`"
        ids = [*tokens, *riders.ids]
        if self._runner.window is not None:
            self._runner.window.put(ids)
        every = [*sequences, riders.sequence]
        Sequence.begin_rounds(every, [1] * len(sequences) + [len(riders.ids)])
        logits = self._row_steps.run(ids)[0]
        Sequence.end_step(every, [*tokens, riders.ids[-1]])
        rows = JointRows(logits, sequences, self._runner, self._draws)
        if riders.ends:
            rows.keep_row(len(ids) - 1, riders.sequence)
        return rows

    def _add_together(self, sequences: Listed[Sequence], tokens: Listed[int]) -> JointRows:
        assert self.steps is not None, "else each is alone"
        if self._runner.window is not None:
            self._runner.window.put(tokens)
        Sequence.begin_step(sequences)
        logits = self.steps.forward(tokens)
        Sequence.end_step(sequences, tokens)
        self.last = JointRows(logits, sequences, self._runner, self._draws)
        return self.last
