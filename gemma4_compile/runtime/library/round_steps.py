"""Calls of a round: guesses, the model on all of them, and a token drawn from each row.

What one of them makes goes to the next on the device; the host reads ids once, at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.cuda_graph import Watch
from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.device import Device, Feed, copy, view
from gemma4_compile.runtime.library.call_graphs import CallGraphs, Tensors
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import Parameters

ROWS = MAX_DRAFTS + 1
"""Rows of a round, at most: the token that was chosen last, and guesses."""

_log = logging.getLogger("gemma4_compile.cuda")


class RoundMemory:
    """Memory on the device that rounds read and write, at the same place in each.

    Attributes
    ----------
    token : the token that was chosen last, int32 (1,); it is also the first of `ids`
    positions : int32 (4,), as `draft_token` takes them
    """

    def __init__(self, device: Device) -> None:
        """Make room for rounds of ROWS rows."""
        self._device = device
        self._ids = device.empty((2 * ROWS,), "int32")  # ids of the rows, and what was drawn
        self._slots = [view(self._ids, (1,), 4 * slot) for slot in range(ROWS)]
        counts = range(1, ROWS + 1)
        self._flat = [view(self._ids, (rows,)) for rows in counts]
        self._batch = [view(self._ids, (1, rows)) for rows in counts]
        self._drawn = [view(self._ids, (rows,), 4 * ROWS) for rows in counts]
        self.token = self._flat[0]
        self.positions = device.empty((4,), "int32")
        uniforms = device.empty((ROWS,), "float32")
        self._uniforms = [view(uniforms, (rows,)) for rows in counts]
        self._temperature, self._top_p = (Feed(device, 1, "float32") for _ in range(2))

    def ids(self, rows: int) -> tuple[tvm_ffi.Tensor, tvm_ffi.Tensor]:
        """The ids of so many rows, as (n,) and as (1, n)."""
        return self._flat[rows - 1], self._batch[rows - 1]

    def put(self, ids: Sequence[int]) -> None:
        """Write the ids of the first rows."""
        _upload(np.array(ids, np.int32), self._flat[len(ids) - 1])

    def put_positions(self, position: int) -> None:
        """Write what a guess at a position takes."""
        _upload(np.array([position, 1, position, 0], np.int32), self.positions)

    def put_guesses(self, guesses: Tensors) -> None:
        """Copy guesses behind the first row's id."""
        for slot, token in enumerate(guesses, 1):
            copy(token, self._slots[slot])

    def put_drawn(self, drawn: tvm_ffi.Tensor) -> None:
        """Copy the tokens that were drawn, int32 (n,), to be read with the ids."""
        copy(drawn, self._drawn[int(drawn.shape[0]) - 1])

    def put_draws(
        self, temperature: float, top_p: float, uniforms: Sequence[float]
    ) -> tuple[tvm_ffi.Tensor, tvm_ffi.Tensor, tvm_ffi.Tensor]:
        """Write what draws take besides logits, and return it in the order of `PlainRounds.draw`.

        Parameters
        ----------
        uniforms : a random number for each row
        """
        numbers = self._uniforms[len(uniforms) - 1]
        _upload(np.array(uniforms, np.float32), numbers)
        return self._temperature.write([temperature]), numbers, self._top_p.write([top_p])

    def read(self, rows: int) -> tuple[list[int], list[int]]:
        """Ids of the rows, and what was drawn from them; the one wait of a round."""
        found = self._device.read(self._ids).tolist()
        return found[:rows], found[ROWS : ROWS + rows]


def _upload(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], to: tvm_ffi.Tensor) -> None:
    copy(tvm_ffi.from_dlpack(array), to)


class PlainRounds:
    """The calls as they are: the host issues every launch.

    Attributes
    ----------
    draft : the library's function that makes one guess
    """

    kernels = (0, 0)

    def __init__(
        self,
        library: NativeLibrary,
        memory: RoundMemory,
        state: tvm_ffi.Object,
        params: Parameters,
        own_params: Parameters,
    ) -> None:
        """Take the library's functions, and what all rounds share.

        Parameters
        ----------
        own_params : weights of the drafter
        """
        self.draft: Forward = library.compiled_function(abi.DRAFT)
        self._verify: Forward = library.compiled_function(abi.VERIFY)
        self._embed = library.compiled_function(abi.EMBED)
        self._draw_rows = library.compiled_function(abi.DRAW_ROWS)
        self._memory, self._state = memory, state
        self._params, self._own_params = params, own_params

    def for_slot(self) -> PlainRounds:
        """The calls for any slot: they hold nothing of one."""
        return self

    def guess(self, count: int, hidden: tvm_ffi.Tensor) -> Tensors:
        """Guesses, int32 (1,) each, after the token in memory.

        Parameters
        ----------
        hidden : the model's state before it, (1, hidden_size)
        """
        ids, positions = self._memory.token, self._memory.positions
        guessed = []
        for _ in range(count):
            embedding = self._embed(ids, self._params)
            result = self.draft(embedding, hidden, positions, self._state, self._own_params)
            ids, hidden = result[0], result[1]
            guessed.append(ids)
        return tuple(guessed)

    def check(self, rows: int) -> Tensors:
        """Logits (1, n, vocab_size) and states (n, hidden_size) of the ids in memory."""
        flat, batch = self._memory.ids(rows)
        embedded = self._embed(flat, self._params)
        whole = view(embedded, (1, *embedded.shape))
        logits, states, _ = self._verify(whole, batch, self._state, self._params)
        return logits, states

    def draw(
        self,
        logits: tvm_ffi.Tensor,
        temperature: tvm_ffi.Tensor,
        uniform: tvm_ffi.Tensor,
        top_p: tvm_ffi.Tensor,
    ) -> tvm_ffi.Tensor:
        """Tokens, int32 (n,), drawn from logits (1, n, vocab_size).

        With float32 numbers: temperature and top_p (1,), uniform (n,).
        """
        return self._draw_rows(logits, temperature, uniform, top_p)


class GraphRounds:
    """The same calls, guesses and rows as CUDA graphs for each number of them.

    Graphs are made when they are first needed.
    """

    def __init__(
        self, plain: PlainRounds, watched: PlainRounds, watch: Watch, device: Device
    ) -> None:
        """Take the calls in two forms; CudaError if CUDA's runtime is not to be had."""
        self._plain, self._watched = plain, watched
        self._watch, self._device = watch, device
        self._guesses = CallGraphs(plain, watched, watch, device)
        self._rows = CallGraphs(plain, watched, watch, device)

    def for_slot(self) -> GraphRounds:
        """The calls for one slot, whose keys and values its graphs have addresses of."""
        return GraphRounds(self._plain, self._watched, self._watch, self._device)

    def guess(self, count: int, hidden: tvm_ffi.Tensor) -> Tensors:
        """As the plain one; `hidden` is the same tensor in every call."""
        name = f"step of {count} guesses"
        return self._guesses.run(name, lambda calls, state: calls.guess(count, state), hidden)

    def check(self, rows: int) -> Tensors:
        """As the plain one; results are right until the next call for as many rows."""
        return self._rows.run(f"step of {rows} rows", lambda calls: calls.check(rows))

    def draw(
        self,
        logits: tvm_ffi.Tensor,
        temperature: tvm_ffi.Tensor,
        uniform: tvm_ffi.Tensor,
        top_p: tvm_ffi.Tensor,
    ) -> tvm_ffi.Tensor:
        """As the plain one, and no graph: a few launches, while the GPU has the model to run."""
        return self._plain.draw(logits, temperature, uniform, top_p)

    @property
    def kernels(self) -> tuple[int, int]:
        """Launches of the largest graphs: of guesses, and of rows; 0 for none."""
        return self._guesses.kernels, self._rows.kernels


def round_steps(
    library: NativeLibrary,
    device: Device,
    memory: RoundMemory,
    state: tvm_ffi.Object,
    params: Parameters,
    own_params: Parameters,
    *,
    graphs: bool,
) -> PlainRounds | GraphRounds:
    """The calls of a round, as CUDA graphs if they are wanted and CUDA can be reached."""

    def calls(of: NativeLibrary) -> PlainRounds:
        return PlainRounds(of, memory, state, params, own_params)

    plain = calls(library)
    if graphs:
        recorded, watch = library.recorded()
        try:
            return GraphRounds(plain, calls(recorded), watch, device)
        except CudaError as error:
            _log.warning("no CUDA graphs of guesses: %s", error)
    return plain
