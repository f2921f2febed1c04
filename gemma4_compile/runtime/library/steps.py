"""Calls for every token: a decode step, and the draw of the next token from its logits."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.cuda_graph import SWITCH, Replayed
from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime, Readback
from gemma4_compile.runtime.device.device import Device, view
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary

Parameters: TypeAlias = "tvm_ffi.Array[tvm_ffi.Tensor]"
"""The weights, as the library takes them."""

_log = logging.getLogger("gemma4_compile.cuda")


class PlainSteps:
    """The calls as they are: the host issues every launch."""

    kernels = (0, 0)

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        state: tvm_ffi.Object,
        params: Parameters,
        vocab_size: int,
    ) -> None:
        """Take the library's functions, and what all steps share."""
        self._decode: Forward = library.compiled_function(abi.DECODE)
        self._softmax = library.compiled_function(abi.SOFTMAX)
        self._sort = library.compiled_function(abi.ARGSORT)
        self._sample = library.compiled_function(abi.SAMPLE_TOP_P)
        self._draw_rows = None
        if device.kind.records_graphs and library.has(abi.DRAW_ROWS):  # there it is the fastest
            self._draw_rows = library.compiled_function(abi.DRAW_ROWS)
        self._state = state
        self._params = params
        self._flat = (1, vocab_size)
        self._device = device
        self._kept: dict[int, tvm_ffi.Tensor] = {}
        self._first = device.place(np.zeros(1, np.int32))

    def forward(self, ids: tvm_ffi.Tensor, *, slot: int = 0) -> tvm_ffi.Tensor:
        """Logits (1, 1, vocab_size) after a token, given as int32 (1, 1).

        Parameters
        ----------
        slot : of the sequence, in the state; the library finds it there
        """
        del slot
        return self._decode(ids, self._state, self._params)[0]

    def kept_logits(self, slot: int) -> tvm_ffi.Tensor:
        """Memory for logits (1, 1, vocab_size) of a slot that come from elsewhere."""
        if slot not in self._kept:
            self._kept[slot] = self._device.empty((1, *self._flat), "float32")
        return self._kept[slot]

    def are_kept(self, logits: tvm_ffi.Tensor, slot: int) -> bool:
        """Whether logits lie in that memory; takes none where there is none."""
        return logits is self._kept.get(slot)

    def draw(
        self,
        logits: tvm_ffi.Tensor,
        temperature: tvm_ffi.Tensor,
        uniform: tvm_ffi.Tensor,
        top_p: tvm_ffi.Tensor,
        *,
        slot: int = 0,
    ) -> tvm_ffi.Tensor:
        """A token, int32 (1,), drawn from logits with numbers that are float32 (1,)."""
        del slot
        if self._draw_rows is not None:
            drawn: tvm_ffi.Tensor = self._draw_rows(logits, temperature, uniform, top_p)
            return drawn
        probs = view(self._softmax(logits, temperature), self._flat)
        _, order = self._sort(probs)
        return self._sample(probs, order, uniform, self._first, top_p)


@dataclass(frozen=True)
class _Graphs:
    """Graphs of one slot, whose keys and values they have addresses of.

    A step, a draw from its logits, and one from the slot's kept logits.
    """

    forward: Replayed[tvm_ffi.Tensor]
    draw: Replayed[tvm_ffi.Tensor]
    draw_kept: Replayed[tvm_ffi.Tensor]


class GraphSteps:
    """The same calls as CUDA graphs, for each slot one for the step and those for draws after it.

    Each is recorded when it is first needed.
    """

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        state: tvm_ffi.Object,
        params: Parameters,
        vocab_size: int,
    ) -> None:
        """Prepare; CudaError if CUDA's runtime is not to be had."""
        self._cuda, self._device = CudaRuntime(), device
        self._plain = PlainSteps(library, device, state, params, vocab_size)
        recorded, self._watch = library.recorded()
        self._watched = PlainSteps(recorded, device, state, params, vocab_size)
        self._graphs: dict[int, _Graphs] = {}

    def forward(self, ids: tvm_ffi.Tensor, *, slot: int) -> tvm_ffi.Tensor:
        """As the plain one; logits are right until the next call for this slot."""
        return self._of(slot).forward(ids)

    def draw(
        self,
        logits: tvm_ffi.Tensor,
        temperature: tvm_ffi.Tensor,
        uniform: tvm_ffi.Tensor,
        top_p: tvm_ffi.Tensor,
        *,
        slot: int,
    ) -> tvm_ffi.Tensor:
        """As the plain one; logits of a prefill lie elsewhere each time and are drawn so."""
        graphs = self._of(slot)
        if logits is graphs.forward.output:
            return graphs.draw(logits, temperature, uniform, top_p)
        if self._plain.are_kept(logits, slot):
            return graphs.draw_kept(logits, temperature, uniform, top_p)
        return self._plain.draw(logits, temperature, uniform, top_p)

    def kept_logits(self, slot: int) -> tvm_ffi.Tensor:
        """As the plain one; draws from them are a graph."""
        return self._plain.kept_logits(slot)

    @property
    def kernels(self) -> tuple[int, int]:
        """Launches of a step's graph and of a draw's; 0 where there is none."""
        made = self._graphs.values()
        forward = max((graphs.forward.kernels for graphs in made), default=0)
        draws = (max(graphs.draw.kernels, graphs.draw_kept.kernels) for graphs in made)
        return forward, max(draws, default=0)

    def _of(self, slot: int) -> _Graphs:
        if slot not in self._graphs:
            plain, watched = self._plain, self._watched
            rest = self._watch, self._cuda, self._device
            self._graphs[slot] = _Graphs(
                Replayed("decode step", plain.forward, watched.forward, *rest),
                Replayed("sampler", plain.draw, watched.draw, *rest),
                Replayed("sampler after others", plain.draw, watched.draw, *rest),
            )
        return self._graphs[slot]


def graphs_wanted(device: Device, choice: bool | None) -> bool:
    """Return whether to use CUDA graphs: by choice, else unless the environment forbids it."""
    wanted = os.environ.get(SWITCH, "1") != "0" if choice is None else choice
    return wanted and device.kind.records_graphs


def token_steps(
    library: NativeLibrary,
    device: Device,
    state: tvm_ffi.Object,
    params: Parameters,
    vocab_size: int,
    *,
    graphs: bool,
) -> PlainSteps | GraphSteps:
    """The calls of every token, as CUDA graphs if they are wanted and CUDA can be reached."""
    if graphs:
        try:
            return GraphSteps(library, device, state, params, vocab_size)
        except CudaError as error:
            _log.warning("no CUDA graphs, so that the host issues each launch: %s", error)
    return PlainSteps(library, device, state, params, vocab_size)


class SubmittedToken:
    """A token of a device that begins what it was given when it is told to.

    What it is given after `queue` is not waited for.
    """

    def __init__(self, device: Device) -> None:
        """Take a device whose reads wait for what they read alone."""
        self._device = device
        self._token: tvm_ffi.Tensor | None = None

    def queue(self, tensor: tvm_ffi.Tensor) -> None:
        """Let the device begin, up to what writes a tensor."""
        self._token = tensor
        self._device.submit()

    def wait(self) -> int:
        """The first number of the tensor that was queued last."""
        assert self._token is not None, "a token is queued before it is waited for"
        self._device.submit()  # the step after it, so that the device need not wait for the host
        return int(self._device.read(self._token)[0])


def token_readback(device: Device, most: int) -> Readback | SubmittedToken | None:
    """A way for tokens to the host that the next step needs not wait for, where there is one.

    `most` : tokens at a time, of as many sequences
    """
    if device.kind.has_launcher:
        return SubmittedToken(device)
    if not device.kind.reads_beside:
        return None
    try:
        return Readback(CudaRuntime(), most)
    except CudaError as error:
        _log.warning("each token is waited for before the next step is launched: %s", error)
        return None
