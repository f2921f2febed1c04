"""Forwards that several sequences share, of a token each: the weights are read once for all."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.device import copy, view
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS, JointDraws, JointSteps
from gemma4_compile.runtime.sampling.sampling import DrawOptions


class JointRows:
    """Logits that a forward gave of several sequences, right until the next one of as many.

    Attributes
    ----------
    sequences : those, in the order of the rows; they have no logits until these are kept
    """

    def __init__(
        self,
        logits: tvm_ffi.Tensor,
        sequences: Listed[Sequence],
        runner: ModelRunner,
        draws: JointDraws | None,
    ) -> None:
        """Take logits (1, n, vocab_size)."""
        self._logits, self.sequences = logits, sequences
        self._runner, self._draws = runner, draws

    @property
    def can_draw(self) -> bool:
        """Whether the library draws from several rows at once."""
        return self._draws is not None

    def keep(self, first: int, count: int) -> None:
        """Copy rows, each to memory of its slot: they are its sequence's logits."""
        for row in range(first, first + count):
            sequence = self.sequences[row]
            kept = self._runner.steps.kept_logits(sequence.slot)
            copy(view(self._logits, kept.shape, 4 * int(kept.shape[2]) * row), kept)
            sequence.logits = kept

    def draw(self, first: int, options: DrawOptions, uniforms: Listed[float]) -> tvm_ffi.Tensor:
        """Launch draws from rows that have these options, as many as numbers; int32 (n,)."""
        assert self._draws is not None, "see `can_draw`"
        return self._draws.launch(self._logits, first, options, uniforms)


class Joint:
    """Adds a token to each of several sequences, as many in a forward as the library takes.

    Attributes
    ----------
    most : sequences of a forward; 1 where the library takes one at a time
    steps : the calls; None there
    """

    def __init__(
        self, model: LoadedModel, runner: ModelRunner, context_length: int, *, graphs: bool
    ) -> None:
        """Take the model."""
        self._runner = runner
        self.most = 1
        self.steps: JointSteps | None = None
        self._draws: JointDraws | None = None
        if model.kv.sequences > 1 and model.library.has(abi.DECODE_ROWS):
            shared = model.library, model.device, model.kv.handle, model.params
            self.steps = JointSteps(*shared, graphs=graphs)
            self.most = min(MOST_ROWS, model.prefill_chunk, context_length)
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

    def _add_together(self, sequences: Listed[Sequence], tokens: Listed[int]) -> JointRows:
        assert self.steps is not None, "else each is alone"
        if self._runner.window is not None:
            self._runner.window.put(tokens)
        Sequence.begin_step(sequences)
        logits = self.steps.forward(tokens)
        Sequence.end_step(sequences, tokens)
        return JointRows(logits, sequences, self._runner, self._draws)
