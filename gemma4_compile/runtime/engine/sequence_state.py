"""The state of one sequence: its tokens' keys and values, and what is known of its end."""

from __future__ import annotations

import tvm_ffi

from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.library.kv_state import KvState


class ContextFullError(Gemma4CompileError):
    """The conversation does not fit into the context that the state was made for."""


class SequenceState:
    """One sequence in the KV state.

    Attributes
    ----------
    context_length : positions that the state holds
    logits : on the device, of the token that was added last; None where a draw used them, or it was
        taken back
    version : another number after every change; who remembers something of the sequence's end
        remembers the version as well
    tentative : guesses at the end that `keep` decides about; None outside a round
    """

    def __init__(self, kv: KvState, context_length: int) -> None:
        """Take over a state, which is empty."""
        self._kv = kv
        self.context_length = context_length
        self.logits: tvm_ffi.Tensor | None = None
        self.version = 0
        self.tentative: int | None = None

    @property
    def length(self) -> int:
        """Tokens in the state."""
        return self._kv.length

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self.context_length - self.length

    def check(self, count: int) -> None:
        """Raise UsageError within a round, and ContextFullError where so many do not fit."""
        if self.tentative is not None:
            raise UsageError("the guesses of a round are in the state: call accept first")
        if count > self.room:
            raise ContextFullError(
                f"the context is full: it holds {self.length} of {self.context_length} tokens, and "
                f"{count} more do not fit",
                hint="start a new conversation, or compile with a larger --context",
            )

    def begin(self, count: int) -> None:
        """Make room for so many more tokens, before the call that adds them."""
        self.version += 1
        self._kv.begin(count)

    def end(self, logits: tvm_ffi.Tensor | None = None) -> None:
        """Finish what `begin` began, after the call, which gave these logits of the last token."""
        self._kv.end()
        self.logits = logits

    def end_round(self, guesses: int) -> None:
        """As `end`, where so many of the tokens are guesses."""
        self.end()
        self.tentative = guesses

    def keep(self, count: int) -> None:
        """End a round: its first `count` guesses stay, and the others go.

        UsageError if there is no round, or it has fewer guesses.
        """
        guesses = self.tentative
        if guesses is None:
            raise UsageError("accept: there is no round of guesses; call advance first")
        if not 0 <= count <= guesses:
            raise UsageError(f"accept: expected 0 to {guesses} guesses, found {count}")
        self.tentative = None
        self.version += 1
        if count < guesses:
            self._kv.pop(guesses - count)

    def pop(self, count: int) -> bool:
        """Take back the last `count` tokens; False and no change where the rings cannot."""
        try:
            self._kv.pop(count)
        except ValueError:
            return False
        self._forget_end()
        return True

    def clear(self) -> None:
        """Forget the sequence; the next token is at position 0."""
        self._forget_end()
        self._kv.clear()

    def _forget_end(self) -> None:
        self.version += 1
        self.tentative = None
        self.logits = None
