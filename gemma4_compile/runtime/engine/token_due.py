"""A reply that waits for its next token, which it takes itself or which a joint step chooses."""

from __future__ import annotations

from gemma4_compile.runtime.engine.next_token import Held, NextToken
from gemma4_compile.runtime.sampling.sampling import Float32Array, Sampler, TokenChooser


class TokenDue:
    """The place where a reply waits: iterate on, and it goes its own way to the token.

    Or `join`, have a step of several sequences add `last` and choose by `chooser`, then `give`, and
    iterate on. `fail` in its place has the reply raise what the step raised.

    Attributes
    ----------
    last : the token that was chosen last and is not in the state; None after a prompt
    chooser : chooses the next one, and never raises
    """

    def __init__(self, way: NextToken, held: Held, chooser: TokenChooser, last: int | None) -> None:
        """Wait on a way, whose state and chooser these are."""
        self._way, self._held = way, held
        self.last = last
        self._guarded = None if isinstance(chooser, Sampler) else _Guarded(chooser)
        self.chooser = self._guarded or chooser
        self._given: int | None = None
        self._error: BaseException | None = None

    @property
    def in_round(self) -> bool:
        """Return whether its own way has the logits already: see `NextToken`."""
        return self._way.in_round

    def leave_way(self) -> None:
        """End what the way began ahead, before another reply has the engine do anything."""
        self._way.close()

    def join(self) -> None:
        """Leave the way, and be part of the step that follows."""
        self._way.close()
        self._held.in_forward = True

    def give(self, token_id: int) -> None:
        """Take what the step chose; a chooser's error is raised where the reply goes on."""
        if self.last is None:
            self._held.in_forward = False
        else:
            self._held.end_forward(self.last)
        self._given = token_id
        if self._guarded is not None:
            self._error = self._guarded.error

    def fail(self, error: BaseException) -> None:
        """Take an error of the step, after which nothing is known of the state."""
        self._error = error

    def take(self) -> int | None:
        """What was given, or None; raises what went wrong."""
        if self._error is not None:
            raise self._error
        return self._given


class _Guarded:
    """Keeps what a chooser raises: it ends one reply, and not the step of all."""

    def __init__(self, chooser: TokenChooser) -> None:
        self._chooser = chooser
        self.error: BaseException | None = None

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token; 0 after an error, where nobody asks for it."""
        try:
            return self._chooser(logits)
        except BaseException as error:  # a panic of native code is no Exception
            self.error = error
            return 0
