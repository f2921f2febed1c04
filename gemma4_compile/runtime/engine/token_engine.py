"""Interfaces that generation needs of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gemma4_compile.runtime.engine.media_prompt import Tokens
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Float32Array, Peek


class LogitRows(Protocol):
    """Logits of several tokens."""

    def read(self, row: int) -> Float32Array:
        """The logits of a row."""


class DrawnTokens(Protocol):
    """Tokens drawn on the device, without end; each is added once the next is asked for."""

    def __next__(self) -> int:
        """The next token."""

    def close(self) -> None:
        """End the sequence with the token before the one that was given last."""


class DeviceSampling(Protocol):
    """What draws tokens on the device; see the class of this name."""

    @property
    def is_faster(self) -> bool:
        """Return whether that is faster than to read logits."""

    def draw_last(self, options: DrawOptions, uniform: float) -> int:
        """Draw from the logits of the last forward."""

    def sampled(
        self,
        temperature: float,
        top_p: float,
        random: Callable[[], float],
        token_id: int | None = None,
    ) -> DrawnTokens:
        """Tokens after `token_id`, or after the last forward."""


class Rounds(Protocol):
    """What guesses tokens ahead and checks them; see the class of this name."""

    drafts: int | None
    most_drafts: int

    @property
    def is_checked(self) -> bool:
        """Return whether the forward of the next round has been, beside those of others."""

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], LogitRows]:
        """Add a token and guesses; return these and the logits of all."""

    def advance_drawn(
        self, token_id: int, drafts: int, options: DrawOptions, peek: Peek
    ) -> tuple[list[int], list[int]]:
        """As `advance`; return the guesses, and a token drawn from each row."""

    def accept(self, count: int) -> None:
        """Keep the token and the first guesses, and take the others back."""


class TokenEngine(Protocol):
    """The part of `Engine` that generation needs; see there."""

    context_length: int
    prefill_chunk: int

    @property
    def length(self) -> int:
        """Tokens in the state."""

    @property
    def sampling(self) -> DeviceSampling | None:
        """What draws tokens on the device; None where nothing does."""

    @property
    def rounds(self) -> Rounds | None:
        """What guesses tokens ahead; None where there is no drafter."""

    def clear(self) -> None:
        """Forget the sequence."""

    def pop(self, count: int) -> bool:
        """Take back the last tokens; False where that cannot be."""

    def prefill(self, ids: Tokens) -> Float32Array:
        """Add tokens; return the logits of the last."""

    def decode(self, token_id: int) -> Float32Array:
        """Add one token; return its logits."""

    def read_logits(self) -> Float32Array:
        """The logits of the token that was added last, by a step of several."""
