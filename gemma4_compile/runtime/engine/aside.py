"""A reply that gave its slot to another one, and goes on later as if it had not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.next_token import Held
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.speculative.draft_pace import Drafting


@dataclass(frozen=True)
class Known:
    """What a `Generator` knows of the state and the reply that it is at.

    Attributes
    ----------
    held : what the state holds; the reply's way to its tokens writes into this very object
    client : who asked
    drafting : the counts of guesses, which the way counts in
    """

    held: Held = field(default_factory=Held)
    client: Hashable = None
    drafting: Drafting = field(default_factory=Drafting)


@dataclass(frozen=True, eq=False)
class Aside:
    """A reply that is put aside.

    Attributes
    ----------
    copy : of what the sequence held
    """

    known: Known
    copy: object


class Shelf(Protocol):
    """Keeps copies of sequences whose replies are put aside; in the engine's thread."""

    def kept(self, keys: Sequence[int]) -> int:
        """Tokens at a prompt's beginning that need not be read again, as far as can be told."""

    def reach(self, prompt: Prompt) -> int:
        """Tokens that a sequence would be given of a prompt, whatever it holds; 0 for few."""

    def save(self, engine: TokenEngine) -> object | None:
        """Copy all that a sequence holds; None, and nothing has changed, where there is no room."""

    def restore(self, engine: TokenEngine, copy: object) -> None:
        """Have the sequence hold what it held, to the last bit; the copy is gone then."""

    def drop(self, copy: object) -> None:
        """Forget a copy."""
