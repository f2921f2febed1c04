"""Guesses ahead: the package's drafter, and how many of its guesses pay.

A round has one forward of the model for several tokens: the one that was chosen last, and what the
drafter guesses to follow it. Each of them gives logits. A token is drawn from the logits of the
first as always; if it is what was guessed, another is drawn from the next, and so on. So every
token is drawn from the very distribution that it would have without guesses, by the same sampler in
the same order: temperature, top-k, top-p, penalties, biases and grammars need no rule of their own.
Where the device draws, it does so from all rows at once, with the random numbers that come next;
those of the rows that are not used are kept for later tokens. For a guess that is certain, as these
are, that is the rejection rule of speculative sampling: a guess d is taken with probability p(d),
and otherwise the token has the distribution p without d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Steps
from contextlib import closing
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.round_steps import RoundMemory, round_steps
from gemma4_compile.runtime.library.steps import Parameters
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import Sampler
from gemma4_compile.runtime.sampling.token_engine import (
    DraftingEngine,
    DrawingEngine,
    DrawOptions,
    TokenChooser,
)

Float32Array = npt.NDArray[np.float32]


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
    most = package.chat_config.prefill_chunk_size - 1
    if drafts > most:
        raise UsageError(
            f"--draft {drafts}: `{package.directory}` takes at most {most}, one fewer than its "
            "prefill chunk",
            hint="leave it out for as many as pay, or compile with a larger --prefill-chunk",
        )


class Drafter:
    """The drafter on its device, and the state of the model that its next guess begins with.

    Attributes
    ----------
    calls : the steps of a round
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
        """Take the library's functions.

        Parameters
        ----------
        state : keys and values of the model
        params, own_params : weights of the model, and of the drafter
        graphs : use CUDA graphs
        """
        self._memory = RoundMemory(device)
        self.calls = round_steps(
            library, device, self._memory, state, params, own_params, graphs=graphs
        )
        self._device = device
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

    def put(self, ids: Sequence[int]) -> None:
        """Let these be the tokens of a round: the one that was chosen last, and guesses."""
        self._memory.put(ids)

    def guess(self, token_id: int, position: int, count: int) -> None:
        """Put a token and guesses of those after it; a forward that begins with it has begun.

        Parameters
        ----------
        position : of the token
        """
        assert self._known, "no state to begin with"
        assert self._hidden is not None, "known since it was kept"
        self._memory.put([token_id])
        self._memory.put_positions(position)
        self._memory.put_guesses(self.calls.guess(count, self._hidden))

    def run(self, rows: int) -> tvm_ffi.Tensor:
        """Run the model on the tokens put, whose forward has begun; logits (1, n, vocab_size)."""
        logits, self._rows = self.calls.check(rows)
        return logits

    def draw(
        self,
        logits: tvm_ffi.Tensor,
        options: DrawOptions,
        uniforms: Sequence[float],
    ) -> None:
        """Draw a token from each row of logits, on the device; arguments as of `Engine.draw`."""
        numbers = self._memory.put_draws(*options, uniforms)
        self._memory.put_drawn(self.calls.draw(logits, *numbers))

    def read(self, rows: int) -> tuple[list[int], list[int]]:
        """The tokens of a round, and those that were drawn; waits for all that was launched."""
        return self._memory.read(rows)

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


class Rows:
    """Logits of several tokens, on the device until they are asked for."""

    def __init__(self, device: Device, logits: tvm_ffi.Tensor) -> None:
        self._device, self._logits = device, logits

    def read(self, row: int) -> Float32Array:
        """The logits (vocab_size,) of a row; right until the next forward."""
        vocab = int(self._logits.shape[-1])
        return self._device.read(view(self._logits, (vocab,), 4 * vocab * row))


Choose: TypeAlias = Callable[[int], int]
"""The token that follows a row of a round; called for one row after the other."""


class RoundChooser:
    """Chooses the tokens of rounds as a chooser does, on the device where that is faster."""

    def __init__(self, engine: DraftingEngine, chooser: TokenChooser) -> None:
        self._engine, self._chooser = engine, chooser
        self._options = chooser.round_options if isinstance(chooser, Sampler) else None
        if not isinstance(engine, DrawingEngine) or not engine.draws_on_device:
            self._options = None

    def first(self, logits: Float32Array) -> int:
        """The token after a prompt, whose logits these are."""
        if self._options is None:
            return self._chooser(logits)
        return self._engine.draw_last(self._options, self._sampler.random())

    def steps(self, token_id: int) -> Steps[int, None, None]:
        """Tokens after this one, without guesses; each is in the state once the next is asked for.

        As without a drafter: a step is launched before the token that begins it is read.
        """
        if self._options is None or not isinstance(self._engine, DrawingEngine):
            while True:
                token_id = self._chooser(self._engine.decode(token_id))
                yield token_id
        with closing(self._engine.sampled(*self._options, self._sampler.random, token_id)) as drawn:
            yield from drawn

    @property
    def _sampler(self) -> Sampler:
        """Return the chooser of draws on the device."""
        assert isinstance(self._chooser, Sampler), "others have no options"
        return self._chooser

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Choose]:
        """Add a token and guesses; return these, and what chooses from the rows."""
        if self._options is None:
            guesses, rows = self._engine.advance(token_id, drafts)
            return guesses, lambda row: self._chooser(rows.read(row))
        sampler = self._sampler
        guesses, drawn = self._engine.advance_drawn(token_id, drafts, self._options, sampler.peek)

        def choose(row: int) -> int:
            sampler.random()  # it was drawn with this number, which is used up only now
            return drawn[row]

        return guesses, choose
