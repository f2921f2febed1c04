'''Input of a user: messages, commands and blocks, from a terminal or from a pipe.

In a terminal, pasted lines are one message (bracketed paste), and lines of earlier runs come back
with the arrow keys. Everywhere `"""` opens a block of lines that ends with `"""`.
'''

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.history import DummyHistory, History, InMemoryHistory
from prompt_toolkit.output import Output, create_output

from gemma4_compile.errors import UsageError
from gemma4_compile.options.given_text import MAX_TEXT_BYTES, TOO_LONG_HINT
from gemma4_compile.options.process import Terminated

QUOTES = '"""'
PROMPT, CONTINUED = "> ", ". "
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Typed:
    """Typed text; `command` is whether it may be one."""

    text: str
    command: bool


class BlockDropped(KeyboardInterrupt):
    """Ctrl-C inside of a block; what was typed of it is gone."""


class Lines(Protocol):
    """Source of typed lines."""

    def read(self, prompt: str, *, kept: bool = True) -> str:
        """Return the next line without its end; EOFError where there is none.

        Parameters
        ----------
        kept : whether it belongs into the history
        """


class PipedLines:
    """Lines of stdin; the mark that PowerShell and some editors begin a text with is none of it."""

    def __init__(self) -> None:
        self._is_first = True

    def read(self, prompt: str, *, kept: bool = True) -> str:
        """Return the next one, or the beginning of one that is too long; `prompt` is not shown."""
        line = sys.stdin.readline(MAX_TEXT_BYTES + 1)
        if not line:
            raise EOFError
        if self._is_first:
            line, self._is_first = line.removeprefix(_BYTE_ORDER_MARK), False
        return line.removesuffix("\n")


class TerminalLines:
    """Lines that a person edits; a pasted text is one of them, with all its line ends."""

    def __init__(self, history: History | None) -> None:
        """Prepare.

        Parameters
        ----------
        history : None: of this run alone
        """
        stream = sys.stdout if sys.stdout.isatty() else sys.stderr
        output = create_output(stdout=stream)
        self._session = _session(history or InMemoryHistory(), output)
        self._unkept = _session(DummyHistory(), output)

    def read(self, prompt: str, *, kept: bool = True) -> str:
        """Return what was typed until Enter; KeyboardInterrupt for Ctrl-C."""
        session = self._session if kept else self._unkept
        return session.prompt(prompt)


def _session(history: History, output: Output) -> PromptSession[str]:
    # Without rows for a menu of completions, which there are none of.
    return PromptSession(
        history=history, output=output, enable_suspend=True, reserve_space_for_menu=0
    )


def is_terminal() -> bool:
    """Return whether a person types, and sees what is typed."""
    return sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())


def read_typed(lines: Lines) -> Typed:
    """Read a message or a command.

    Raises
    ------
    EOFError, KeyboardInterrupt
        If the input ends, or Ctrl-C is pressed.
    UsageError
        If the input ends inside of a block, or is too long; what follows is not to be read then.
    """
    text = lines.read(PROMPT)
    _check_length(len(text))
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return Typed(_block(lines, stripped.removeprefix(QUOTES)), command=False)
    return Typed(text, command="\n" not in stripped)


def _check_length(characters: int) -> None:
    if characters > MAX_TEXT_BYTES:
        raise UsageError(
            f"a message of more than {MAX_TEXT_BYTES} bytes is not read", hint=TOO_LONG_HINT
        )


def _block(lines: Lines, text: str) -> str:
    """The text of a block, whose first line is `text`."""
    pieces = [text]
    length = len(text)
    while not pieces[-1].rstrip().endswith(QUOTES):
        _check_length(length)
        try:
            pieces.append(lines.read(CONTINUED, kept=False))
        except Terminated:
            raise
        except KeyboardInterrupt:
            raise BlockDropped from None
        except EOFError as error:
            raise UsageError(
                f"a block that {QUOTES} opened has no end, and is not sent",
                hint=f"end it with {QUOTES}",
            ) from error
        length += len(pieces[-1]) + 1
    pieces[-1] = pieces[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(pieces).strip("\n")
