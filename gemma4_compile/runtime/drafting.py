"""Guesses ahead: the package's drafter, and how many of its guesses pay.

A round has one forward of the model for several tokens: the one that was chosen last, and what the
drafter guesses to follow it. Each of them gives logits. A token is drawn from the logits of the
first as always; if it is what was guessed, another is drawn from the next, and so on. So every
token is drawn from the very distribution that it would have without guesses, by the same sampler in
the same order: temperature, top-k, top-p, penalties, biases and grammars need no rule of their own.
For a guess that is certain, as these are, that is the rejection rule of speculative sampling: a
guess d is taken with probability p(d), and otherwise the token has the distribution p without d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.chat_options import MAX_DRAFTS
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device import Device, Feed, copy, view
from gemma4_compile.runtime.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.package import Package
from gemma4_compile.runtime.sampling import Sampler
from gemma4_compile.runtime.token_engine import (
    DrawingEngine,
    LogitRows,
    TokenChooser,
    TokenEngine,
)

Float32Array = npt.NDArray[np.float32]
Parameters: TypeAlias = "tvm_ffi.Array[tvm_ffi.Tensor]"


def check_drafts(drafts: int | None, package: Package) -> None:
    """Raise UsageError for a number of guesses that this package cannot have."""
    if not drafts:
        return
    if not 1 <= drafts <= MAX_DRAFTS:
        raise UsageError(
            f"--draft: expected 0 to {MAX_DRAFTS}, found {drafts}",
            hint="leave it out for as many as pay",
        )
    if package.drafter_cache is None:
        raise UsageError(
            f"--draft {drafts}: `{package.directory}` has no drafter",
            hint="compile it with --drafter, or leave this out",
        )


class Drafter:
    """The drafter on its device, and the state of the model that its next guess begins with."""

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        state: tvm_ffi.Object,
        params: Parameters,
        own_params: Parameters,
    ) -> None:
        """Take the library's functions.

        Parameters
        ----------
        state : keys and values of the model
        params, own_params : weights of the model, and of the drafter
        """
        self._draft: Forward = library.compiled_function(abi.DRAFT)
        self._verify: Forward = library.compiled_function(abi.VERIFY)
        self._embed = library.compiled_function(abi.EMBED)
        self._device, self._state = device, state
        self._params, self._own_params = params, own_params
        self._token = Feed(device, 1, "int32")
        self._ids = Feed(device, MAX_DRAFTS + 1, "int32")
        self._positions = Feed(device, 4, "int32")
        self._rows: tvm_ffi.Tensor | None = None  # states of the tokens that ran last
        self._hidden: tvm_ffi.Tensor | None = None  # where the state before the next token is
        self._known = False

    @property
    def is_ready(self) -> bool:
        """Return whether it knows the model's state before the next token, so that it can guess."""
        return self._known

    def forget(self) -> None:
        """Note that the model went on without it."""
        self._known, self._rows = False, None

    def guess(self, token_id: int, position: int, count: int) -> list[int]:
        """Guess the tokens after one; a forward that begins with it has begun.

        Parameters
        ----------
        position : of the token
        """
        assert self._known, "no state to begin with"
        assert self._hidden is not None, "known since it was kept"
        ids, hidden = self._token.write([token_id]), self._hidden
        positions = self._positions.write([position, 1, position, 0])
        guessed = []
        for _ in range(count):
            embedding = self._embed(ids, self._params)
            result = self._draft(embedding, hidden, positions, self._state, self._own_params)
            ids, hidden = result[0], result[1]
            guessed.append(ids)
        return [int(self._device.read(token)[0]) for token in guessed]

    def run(self, ids: Sequence[int]) -> tvm_ffi.Tensor:
        """Run the model on tokens whose forward has begun; logits (1, n, vocab_size)."""
        count = len(ids)
        on_device = self._ids.write(ids)
        embedded = self._embed(on_device, self._params)
        logits, self._rows, _ = self._verify(
            view(embedded, (1, *embedded.shape)),
            view(on_device, (1, count)),
            self._state,
            self._params,
        )
        return logits

    @property
    def states(self) -> Float32Array:
        """States (n, hidden_size) of the tokens that ran last, after the final norm."""
        assert self._rows is not None, "tokens ran"
        return self._device.read(self._rows)

    def keep(self, row: int) -> None:
        """Note that the model goes on after this one of the tokens that ran last."""
        assert self._rows is not None, "tokens ran"
        width = int(self._rows.shape[1])
        if self._hidden is None:
            self._hidden = self._device.empty((1, width), "float32")
        copy(view(self._rows, (1, width), 4 * width * row), self._hidden)
        self._known, self._rows = True, None


def row_chooser(engine: TokenEngine, chooser: TokenChooser) -> Callable[[LogitRows, int], int]:
    """Chooses from a row as the chooser does, on the device where that is faster."""
    options = chooser.device_options if isinstance(chooser, Sampler) else None
    if options is None or not isinstance(engine, DrawingEngine) or not engine.draws_on_device:
        return lambda rows, row: chooser(rows.read(row))
    assert isinstance(chooser, Sampler), "others have no options"
    sampler, (temperature, top_p) = chooser, options
    return lambda rows, row: rows.draw(row, temperature, top_p, sampler.random())
