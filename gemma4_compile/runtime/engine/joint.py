"""Forwards that several sequences share, of a token each: the weights are read once for all."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.device import copy, view
from gemma4_compile.runtime.engine.model_runner import LoadedModel, ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS, JointSteps


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
        self._runner, self._vocab_size = runner, model.vocab_size
        self.most = 1
        self.steps: JointSteps | None = None
        if model.kv.sequences > 1 and model.library.has(abi.DECODE_ROWS):
            shared = model.library, model.device, model.kv.handle, model.params
            self.steps = JointSteps(*shared, graphs=graphs)
            self.most = min(MOST_ROWS, model.prefill_chunk, context_length)

    def add(self, sequences: Listed[Sequence], tokens: Listed[int]) -> None:
        """Add one token to each, which is known to fit; each gets the logits after it.

        Those are right until the next forward of that sequence. One that is alone in its forward is
        added as it is without others.
        """
        if not sequences:
            return
        count = -(-len(sequences) // self.most)
        for places in np.array_split(np.arange(len(sequences)), count):
            group = [sequences[place] for place in places]
            own = [tokens[place] for place in places]
            if len(group) == 1:
                self._runner.forward_one(group[0], own[0])
            else:
                self._add_together(group, own)

    def _add_together(self, sequences: Listed[Sequence], tokens: Listed[int]) -> None:
        assert self.steps is not None, "else each is alone"
        if self._runner.window is not None:
            self._runner.window.put(tokens)
        Sequence.begin_step(sequences)
        rows = self.steps.forward(tokens)
        found = [self._kept(rows, row, one.slot) for row, one in enumerate(sequences)]
        Sequence.end_step(sequences, found)

    def _kept(self, rows: tvm_ffi.Tensor, row: int, slot: int) -> tvm_ffi.Tensor:
        """The logits (1, 1, vocab_size) of a row, in memory of its slot."""
        kept = self._runner.steps.kept_logits(slot)
        copy(view(rows, kept.shape, 4 * self._vocab_size * row), kept)
        return kept
