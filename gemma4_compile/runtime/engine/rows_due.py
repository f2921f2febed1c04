"""A prompt's last rows, which may be read beside the tokens of other sequences."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.next_token import Held
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import Float32Array

MOST_ROWS_DUE = 16
"""Rows of a prompt's last chunk that may be read so: of more a chunk is the better way."""


@dataclass(frozen=True)
class Riding:
    """Rows of a prompt that a step of other sequences reads, too.

    Attributes
    ----------
    engine : to whose sequence they are added
    ids : their tokens
    ends : they are the prompt's last ones, whose logits are asked for next
    """

    engine: TokenEngine
    ids: list[int]
    ends: bool


class RowsDue:
    """The place where the last rows of a prompt wait: iterate on, and they are read as a chunk.

    Or `begin` with some of them, have a step of other sequences read these, then `end`. What is
    left may ride in the next one. `fail` in the place of `end` has the reply raise what the step
    raised.
    """

    def __init__(self, engine: TokenEngine, held: Held, rows: Prompt) -> None:
        """Wait with rows of text, which come next in an engine's state."""
        self._engine, self._held, self._rows, self._begun = engine, held, rows, 0
        self._error: BaseException | None = None

    def __len__(self) -> int:
        """Rows that are left."""
        return len(self._rows)

    def begin(self, count: int) -> Riding:
        """Let the first rows ride."""
        self._held.in_forward, self._begun = True, count
        return Riding(self._engine, self._rows.ids[:count], count == len(self._rows))

    def end(self) -> None:
        """Note that the rows that began were read."""
        self._held.end_forward(*self._rows.keys()[: self._begun])
        self._rows = self._rows.part(self._begun, len(self._rows))

    def fail(self, error: BaseException) -> None:
        """Take an error of the step, after which nothing is known of the state."""
        self._error = error

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to wait for."""
        return self._error is not None or not len(self)

    def take(self) -> tuple[Prompt, Float32Array | None]:
        """The rows that are left, and the logits where none are; raises what went wrong."""
        if self._error is not None:
            raise self._error
        return self._rows, None if len(self) else self._engine.read_logits()


def may_ride(rows: Prompt) -> bool:
    """Return whether a prompt's last chunk may be read so: few rows, and none of media."""
    return len(rows) <= MOST_ROWS_DUE and not rows.runs
