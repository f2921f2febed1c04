"""Ends the rendering of a chat template before its time: cancelled, too slow, or too long to fit.

Templates look back and ahead in a conversation, so that their time may grow with the square of its
length. What is looked at goes through the sandbox, and there a rendering can be ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gemma4_compile.errors import Gemma4CompileError

_PLAIN = (str, int, bool, float)  # of which no method is taken
_LOOKS_A_CHECK = 256  # of a template at values; fewer take a part of a millisecond


class SlowRenderingError(Gemma4CompileError):
    """A rendering takes longer than it may, or was cancelled."""


class _Ended(BaseException):
    """Carries an error through Jinja and what surrounds it, which catch every Exception."""

    def __init__(self, error: Gemma4CompileError) -> None:
        super().__init__(str(error))
        self.error = error


class Watch:
    """Limits of the renderings of one conversation; another thread may cancel them."""

    def __init__(self, seconds: float | None = None, characters: int | None = None) -> None:
        """Prepare.

        Parameters
        ----------
        seconds : of the thread that renders, without what it waits; None: no limit
        characters : most of the text; None: no limit
        """
        self._seconds, self._characters = seconds, characters
        self._begun: float | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End what is rendered, soon."""
        self._cancelled = True

    def check(self) -> None:
        """SlowRenderingError where it is to end; in the thread that renders."""
        if self._cancelled:
            raise SlowRenderingError("the request was cancelled")
        if self._seconds is None:
            return
        now = time.thread_time()
        self._begun = now if self._begun is None else self._begun
        if now - self._begun > self._seconds:
            raise SlowRenderingError(
                f"the chat template takes more than {self._seconds:g} s for this conversation",
                hint="give fewer messages and calls of tools",
            )

    def check_length(self, characters: int) -> None:
        """SlowRenderingError for a text that is too long."""
        if self._characters is not None and characters > self._characters:
            raise SlowRenderingError(f"the text has more than {self._characters} characters")


@dataclass
class _Rendering:
    watch: Watch
    new_text: Callable[[], Callable[[str], None]]
    looks: int = 0

    def look(self) -> None:
        self.looks += 1
        if self.looks % _LOOKS_A_CHECK == 0:
            try:
                self.watch.check()
            except Gemma4CompileError as error:
                raise _Ended(error) from error

    def pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """The text piece by piece, as soon as the template has it."""
        take, length = self.new_text(), 0
        for piece in pieces:
            length += len(piece)
            try:
                self.watch.check_length(length)
                take(piece)
            except Gemma4CompileError as error:
                raise _Ended(error) from error
            yield piece


_rendering: ContextVar[_Rendering | None] = ContextVar("rendering", default=None)


@contextlib.contextmanager
def watched(watch: Watch, new_text: Callable[[], Callable[[str], None]]) -> Iterator[None]:
    """Hold what is rendered in the block to a watch.

    Parameters
    ----------
    new_text : called when a text begins; what it returns is called with each of its pieces, and
        may raise a Gemma4CompileError, which comes out of the block as it is
    """
    token = _rendering.set(_Rendering(watch, new_text))
    try:
        yield
    except _Ended as ended:
        raise ended.error from None
    finally:
        _rendering.reset(token)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Let what is rendered in the block be no part of the text that is watched around it."""
    token = _rendering.set(None)
    try:
        yield
    finally:
        _rendering.reset(token)


class WatchedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, whose templates tell the watch of what they look at and write."""

    def getattr(self, obj: object, attribute: str) -> Any:
        """An attribute; those of namespaces, which templates ask for most, without a detour."""
        rendering = _rendering.get()
        if rendering is not None:
            rendering.look()
        if isinstance(obj, Namespace) and attribute[:1] != "_":
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    def getitem(self, obj: object, argument: object) -> Any:
        """An item, or an attribute."""
        rendering = _rendering.get()
        if rendering is not None:
            rendering.look()
        return super().getitem(obj, argument)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join what a template writes; a list is that of a macro or a block, which is done."""
        rendering = _rendering.get()
        if rendering is None or isinstance(pieces, list):
            return "".join(pieces)
        return "".join(rendering.pieces(pieces))
