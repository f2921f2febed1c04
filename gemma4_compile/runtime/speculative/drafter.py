"""The package's drafter on its device, and the numbers of guesses that a package can have."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.round_steps import (
    GraphRounds,
    PlainRounds,
    RoundMemory,
    round_steps,
)
from gemma4_compile.runtime.library.steps import Parameters
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Float32Array


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
    """The drafter on its device, and the state of a sequence that its next guess begins with.

    Attributes
    ----------
    calls : the steps of a round
    """

    def __init__(
        self, device: Device, memory: RoundMemory, calls: PlainRounds | GraphRounds
    ) -> None:
        """Begin without a state.

        Parameters
        ----------
        memory : of the tokens of a round
        """
        self._device, self._memory, self.calls = device, memory, calls
        self._rows: tvm_ffi.Tensor | None = None  # states of the tokens that ran last
        self._hidden: tvm_ffi.Tensor | None = None  # where the state before the next token is

    @property
    def state(self) -> tvm_ffi.Tensor:
        """The state (1, hidden_size) before the next token, which was kept."""
        assert self._hidden is not None, "a state to begin with, that was kept"
        return self._hidden

    def put(self, ids: Sequence[int]) -> None:
        """Let these be the tokens of a round: the one that was chosen last, and guesses."""
        self._memory.put(ids)

    def guess(self, token_id: int, position: int, count: int) -> None:
        """Put a token and guesses of those after it; a forward that begins with it has begun.

        Parameters
        ----------
        position : of the token
        """
        hidden = self.state
        self._memory.put([token_id])
        self._memory.put_positions(position)
        self._memory.put_guesses(self.calls.guess(count, hidden))

    def note_states(self, states: tvm_ffi.Tensor) -> None:
        """Note the states (n, hidden_size) of tokens that ran beside those of other sequences."""
        self._rows = states

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
        self._rows = None


class Drafters:
    """A drafter for each slot: its state is that of a sequence, and graphs hold a slot's addresses.

    The memory of tokens is one: those of a round are on the host before another one begins.
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
        self._device, self._memory = device, RoundMemory(device)
        shared = library, device, self._memory, state, params, own_params
        self._calls = round_steps(*shared, graphs=graphs)
        self._of_slot: dict[int, Drafter] = {}
        self._logits: tvm_ffi.Tensor | None = None  # of rows that do not begin a tensor

    def copied_logits(self, shape: tuple[int, int, int]) -> tvm_ffi.Tensor:
        """Memory for logits (1, n, vocab_size) that are drawn from next, always the same."""
        if self._logits is None:
            self._logits = self._device.empty((1, MOST_ROWS, shape[2]), "float32")
        return view(self._logits, shape)

    def of(self, slot: int) -> Drafter:
        """That of a slot, made when it is first asked for."""
        if slot not in self._of_slot:
            calls = self._calls.for_slot()
            self._of_slot[slot] = Drafter(self._device, self._memory, calls)
        return self._of_slot[slot]
