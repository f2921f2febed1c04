"""Guesses of several sequences at once: the drafter runs on a row of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.library.call_graphs import Tensors
from gemma4_compile.runtime.library.joint_graphs import JointGraphs
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import Parameters

_Calls: TypeAlias = "tuple[Forward, Forward]"


class JointGuesses:
    """The calls for each number of rows and of guesses, as of `JointGraphs`.

    Attributes
    ----------
    graphs : of the library's functions, for a token's row, and for the guess after it
    """

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        state: tvm_ffi.Object,
        params: Parameters,
        own_params: Parameters,
        *,
        graphs: bool,
    ) -> None:
        """Take the library's functions, ArtifactError where it has none: see `NativeLibrary.has`.

        Parameters
        ----------
        params, own_params : weights of the model, and of the drafter
        """
        self._device, self._state = device, state
        self._params, self._own_params = params, own_params
        what = "guesses of several sequences"
        self.graphs = JointGraphs(library, device, _calls, what, graphs=graphs)
        ids = device.empty((MOST_ROWS,), "int32")
        self._ids = [view(ids, (rows,)) for rows in range(1, MOST_ROWS + 1)]
        self._guessed = device.empty((MAX_DRAFTS * MOST_ROWS,), "int32")
        self._hidden: list[tvm_ffi.Tensor] = []  # by the number of rows, once their width is known

    def guess(
        self, tokens: Sequence[int], states: Sequence[tvm_ffi.Tensor], count: int
    ) -> list[list[int]]:
        """So many guesses of what follows the token of each sequence; waits for them, once.

        Their sequences are those of the forward that the state began, of a token each.

        Parameters
        ----------
        states : the model's state before each token, (1, hidden_size)
        """
        rows = len(tokens)
        ids, hidden = self._ids[rows - 1], self._rows_of(states)
        copy(tvm_ffi.from_dlpack(np.array(tokens, np.int32)), ids)
        name = f"step of {count} guesses of {rows} sequences"
        made = self.graphs.run(name, partial(self._call, count), ids, hidden)
        for step, guessed in enumerate(made):
            copy(guessed, view(self._guessed, (rows,), 4 * rows * step))
        found = self._device.read(view(self._guessed, (count * rows,)))
        return found.reshape(count, rows).T.tolist()

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return self.graphs.kernels

    def _rows_of(self, states: Sequence[tvm_ffi.Tensor]) -> tvm_ffi.Tensor:
        """The states one under another, always at the same place."""
        width = int(states[0].shape[1])
        if not self._hidden:
            whole = self._device.empty((MOST_ROWS, width), "float32")
            self._hidden = [view(whole, (rows, width)) for rows in range(1, MOST_ROWS + 1)]
        hidden = self._hidden[len(states) - 1]
        for row, state in enumerate(states):
            copy(state, view(hidden, (1, width), 4 * width * row))
        return hidden

    def _call(
        self, count: int, calls: _Calls, ids: tvm_ffi.Tensor, hidden: tvm_ffi.Tensor
    ) -> Tensors:
        embed, draft = calls
        guessed = []
        for _ in range(count):
            embeddings = embed(ids, self._params)
            result = draft(embeddings, hidden, self._state, self._own_params)
            ids, hidden = result[0], result[1]
            guessed.append(ids)
        return tuple(guessed)


def _calls(library: NativeLibrary) -> _Calls:
    return library.compiled_function(abi.EMBED), library.compiled_function(abi.DRAFT_ROWS)
