"""Where the beginning of a prompt is looked for, besides in the state that is to hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from gemma4_compile.runtime.engine.media_prompt import Prompt

End = Literal["chunk", "prompt", "reply"]
"""What has just been added whole: a chunk of a prompt, its last one, or a reply."""


class Beginnings(Protocol):
    """Keeps what states held, for one sequence, which it knows.

    `Generator.rewind` asks it after that sequence has gone back to what it shares with a prompt
    itself, and `Generator` tells it of every state that a later prompt may begin with. Both are
    called in the thread of the engine, outside a forward.
    """

    def restore(self, prompt: Prompt, shared: int, tenant: str) -> int:
        """Put a longer beginning of `prompt` than its first `shared` tokens into the sequence.

        Return how many tokens it then holds: at most all of the prompt but the last, whose logits
        are wanted; `shared`, and the sequence is as it was, where nothing longer is kept. After an
        error nothing is known of the sequence, and the next prompt clears it.

        Parameters
        ----------
        tenant : only what was kept under this name is found
        """

    def keep(self, keys: Sequence[int], end: End, tenant: str) -> None:
        """Hear that the sequence holds these, as `Prompt.keys` numbers them; it may keep them."""
