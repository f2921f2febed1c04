"""How a prompt gets into the state: in chunks, or token by token where somebody wants each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator as Steps
from dataclasses import dataclass
from typing import Protocol

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.rows_due import RowsDue, may_ride
from gemma4_compile.runtime.sampling.sampling import Float32Array

PromptWatcher = Callable[[int, Float32Array], None]
"""Hears of each token of a prompt but the first: its id, and the logits (vocab_size,) before it."""


@dataclass(frozen=True)
class PromptProgress:
    """A chunk of `read` tokens is done: `done` of the prompt's `total` are in the state."""

    done: int
    total: int
    read: int


class PromptState(Protocol):
    """The part of `Generator` that reading needs; see there."""

    def cut(self, prompt: Prompt, begin: int) -> list[slice]:
        """The chunks of a prompt from `begin` on."""

    def leave(self, shared: int) -> None:
        """Tell that all but the first `shared` tokens of the state are about to go."""

    def clear(self) -> None:
        """Forget everything."""

    def prefill(self, chunk: Prompt, *, as_token: bool = False) -> Float32Array:
        """Add one chunk, or one token as those of replies are; return the logits after it."""

    def rows_due(self, rows: Prompt) -> RowsDue:
        """The place where rows wait that come next."""

    def keep(self, rest: int) -> float:
        """Tell of the state after a chunk, before `rest` tokens."""


def read_chunks(
    state: PromptState, prompt: Prompt, done: int, *, pauses: bool = False
) -> Steps[PromptProgress | RowsDue, None, Float32Array]:
    """Read what comes after the first `done` tokens; return the logits after the last one.

    `pauses` : with a place to wait before the last ones, where they are few
    """
    total, logits = len(prompt), None
    for part in state.cut(prompt, done):
        rows = prompt.part(part.start, part.stop)
        if pauses and part.stop == total and may_ride(rows):
            due = state.rows_due(rows)
            yield due
            rows, logits = due.take()
        if len(rows):
            logits = state.prefill(rows)
        if part.stop < total:
            state.keep(total - part.stop)
        yield PromptProgress(part.stop, total, part.stop - part.start)
    assert logits is not None, "at least one token is left to run"
    return logits


def read_tokens(
    state: PromptState, prompt: Prompt, watch: PromptWatcher
) -> Steps[PromptProgress, None, Float32Array]:
    """Read all of a text anew, a token in each step; otherwise as `read_chunks`."""
    state.leave(0)
    state.clear()
    total = len(prompt)
    ends = {part.stop for part in state.cut(prompt, 0)}
    logits = state.prefill(prompt.part(0, 1))
    yield PromptProgress(1, total, 1)
    for index in range(1, total):
        watch(prompt.ids[index], logits)
        logits = state.prefill(prompt.part(index, index + 1), as_token=True)
        if index + 1 in ends and index + 1 < total:
            state.keep(total - index - 1)
        yield PromptProgress(index + 1, total, 1)
    return logits
