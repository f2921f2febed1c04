"""Guesses of several sequences at once: the drafter runs on a row of each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.cuda_graph import Replayed, Watch
from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import Parameters

Tensors: TypeAlias = "tuple[tvm_ffi.Tensor, ...]"
_Calls: TypeAlias = "tuple[Forward, Forward]"

_log = logging.getLogger("gemma4_compile.cuda")


class JointGuesses:
    """The calls for each number of rows and of guesses, on CUDA as a graph of its own.

    What a row is of, the state has on the device, as of `JointSteps`: a graph is right for any
    sequences. Graphs are made when they are first needed.

    Attributes
    ----------
    calls : the library's functions, for a token's row, and for the guess after it
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
        self.calls = _calls(library)
        ids = device.empty((MOST_ROWS,), "int32")
        self._ids = [view(ids, (rows,)) for rows in range(1, MOST_ROWS + 1)]
        self._guessed = device.empty((MAX_DRAFTS * MOST_ROWS,), "int32")
        self._hidden: list[tvm_ffi.Tensor] = []  # by the number of rows, once their width is known
        self._graphs: dict[tuple[int, int], Replayed[Tensors]] = {}
        self._recorder: tuple[_Calls, Watch, CudaRuntime] | None = None
        if graphs:
            watch = Watch(library.copier)
            try:
                self._recorder = _calls(library.watched(watch)), watch, CudaRuntime()
            except CudaError as error:
                _log.warning("no CUDA graphs of guesses of several sequences: %s", error)

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
        for step, guessed in enumerate(self._run(count, ids, hidden)):
            copy(guessed, view(self._guessed, (rows,), 4 * rows * step))
        found = self._device.read(view(self._guessed, (count * rows,)))
        return found.reshape(count, rows).T.tolist()

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return max((graph.kernels for graph in self._graphs.values()), default=0)

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

    def _run(self, count: int, ids: tvm_ffi.Tensor, hidden: tvm_ffi.Tensor) -> Tensors:
        if self._recorder is None:
            return self._call(self.calls, count, ids, hidden)
        key = int(ids.shape[0]), count
        if key not in self._graphs:
            watched, watch, cuda = self._recorder
            self._graphs[key] = Replayed(
                f"step of {count} guesses of {key[0]} sequences",
                lambda *given: self._call(self.calls, count, *given),
                lambda *given: self._call(watched, count, *given),
                watch,
                cuda,
                self._device,
            )
        return self._graphs[key](ids, hidden)

    def _call(
        self, calls: _Calls, count: int, ids: tvm_ffi.Tensor, hidden: tvm_ffi.Tensor
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
