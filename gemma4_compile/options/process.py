"""Processes of all commands: their arguments, and how they end.

Every command is run by `run_command`, and what reads its arguments before.
Whatever goes wrong is a line on stderr that begins with `error: ` and one with `hint: `.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, NoReturn, TypeAlias

from gemma4_compile import __version__
from gemma4_compile.errors import (
    CheckpointError,
    ConfigError,
    Gemma4CompileError,
    InterruptedRunError,
    UsageError,
    is_panic,
    printable,
)
from gemma4_compile.system.end_signals import ends

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 and the signal's number
EXIT_TERMINATED = 143
DEBUG_HINT = "run again with --debug and report what it shows"

CLOSED = "closed_at_start"
"""Attribute of a stream that stands for one that was closed when the program began."""
CLEARING_SECONDS = 10.0
"""For which a command that was interrupted clears up before a further Ctrl-C ends it."""

_SYSTEM_HINT = "look for space and permissions; --debug shows where it was"
MEMORY_HINT = (
    "close other programs, or allow this one more: `ulimit -v` shows a limit of its address space, "
    "and containers have limits of their own"
)

_unsaid = contextvars.ContextVar("unsaid", default=False)

Hints = Mapping[type[Gemma4CompileError], str]
"""Hints for errors that bring none of their own, by class."""


_HINTS: Hints = {
    CheckpointError: "download the checkpoint again",
    ConfigError: "correct config.json, or save the model again with save_pretrained",
}


Options: TypeAlias = "argparse._ArgumentGroup | argparse.ArgumentParser"
"""What options are added to: a parser, or one of the groups of its help."""


def non_empty(text: str) -> str:
    """A name that an argument gives; argparse's error for none, as of a variable that is unset."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def path(text: str) -> Path:
    """A file or directory that an argument names. `Path("")` would be the one the user is in."""
    return Path(non_empty(text))


def check_known(said: str, name: str, known: Collection[str], further: str = "") -> None:
    """Raise UsageError for a name that is not among those that are known; `said` what it is."""
    if name not in known:
        raise UsageError(f"{said} `{name}`", hint=f"known: {', '.join(known)}{further}")


_UNKNOWN = "unrecognized arguments: "  # of argparse, in every version that is taken
_LIKE = 0.8  # --max-new-tokens is --max-tokens (0.86), --model is not --modalities (0.63)


class Parser(argparse.ArgumentParser):
    """The arguments of a command; wrong ones are an error as every other, without the usage.

    Attributes
    ----------
    surplus : the hint for a word that has no place on the command line
    """

    def __init__(
        self, prog: str, description: str, epilog: str | None = None, surplus: str | None = None
    ) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog)
        self.surplus = surplus

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, hint=self._hint(message))

    def _hint(self, message: str) -> str | None:
        """For what is unknown: the option whose name is like it, or where a word would go."""
        if not message.startswith(_UNKNOWN):
            return None
        word = message.removeprefix(_UNKNOWN).split(maxsplit=1)[0]
        if not word.startswith("-"):
            return self.surplus
        name = word.partition("=")[0]
        known = [long for one in self._actions for long in one.option_strings if long[:2] == "--"]
        begins = sorted((one for one in known if name.startswith(one)), key=len, reverse=True)
        near = begins or get_close_matches(name, known, n=1, cutoff=_LIKE)
        return f"did you mean {near[0]}? See {self.prog} --help" if near else None

    def _print_message(  # type: ignore[override]  # streams alone are given
        self, message: str, file: IO[str] | None = None
    ) -> None:
        """Print help or the version; OSError where that cannot be, which argparse would swallow."""
        file = file or sys.stderr
        check_open(file)
        file.write(message)
        file.flush()

    def add_common(self) -> None:
        """Add the options that every command has."""
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


class Terminated(KeyboardInterrupt):
    """SIGTERM: it leaves, also where Ctrl-C would stop an answer alone."""


class Interruptions:
    """SIGINT and SIGTERM (Windows: Ctrl-Break, too) as KeyboardInterrupt, remembered.

    One that arrives while TVM calls back into Python comes out of TVM as another exception.

    Attributes
    ----------
    number : of the signal that arrived last, or None
    """

    def __init__(self, *, once: bool) -> None:
        """Prepare.

        Parameters
        ----------
        once : those after the first are not heard while the command clears up; after a while, the
            next one ends the process
        """
        self._once = once
        self._first_s: float | None = None
        self.number: int | None = None

    def _arrive(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._once and self._first_s is not None:
            if now - self._first_s > CLEARING_SECONDS:
                os._exit(128 + signum)
            return
        self._first_s = now
        self.number = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
        raise KeyboardInterrupt if signum == signal.SIGINT else Terminated

    @property
    def status(self) -> int:
        """The exit status of a command that they end."""
        return EXIT_INTERRUPTED if self.number is None else 128 + self.number

    def __enter__(self) -> Interruptions:
        self._before = {
            number: signal.signal(number, self._arrive) for number in (signal.SIGINT, *ends())
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run_command(
    name: str,
    run: Callable[[], None],
    *,
    debug: bool,
    hints: Hints = MappingProxyType({}),
    interrupted: str | None = None,
) -> int:
    """Run a command, or a part of one, and report what went wrong.

    Parameters
    ----------
    name : of the command
    debug : show where an error was
    hints : for errors that bring none of their own, besides those that are common
    interrupted : the hint of a command that Ctrl-C or SIGTERM ends unfinished; with None, Ctrl-C is
        how to leave the command, and nothing is said

    Returns
    -------
    int
        The exit status: 0, 1 failed, 2 usage, 130 interrupted by Ctrl-C, 143 by SIGTERM.
    """
    with Interruptions(once=interrupted is not None) as interruptions:
        try:
            run()
            if sys.stdout is not None:  # None: closed by who started this
                sys.stdout.flush()  # a reader that has gone is noticed here, not at the very end
        except BaseException as error:
            if not isinstance(error, (Exception, KeyboardInterrupt)) and not is_panic(error):
                raise
            shown = error if debug else None
            arrived = interrupted is not None and interruptions.number is not None
            if arrived or isinstance(error, KeyboardInterrupt):
                left = error.hint if isinstance(error, InterruptedRunError) else interrupted
                if left is not None:
                    report("interrupted", left, shown)
                return interruptions.status
            if isinstance(error, BrokenPipeError):  # as of `| head`: there is nobody to tell
                return EXIT_FAILED
            if isinstance(error, Gemma4CompileError):
                usage = isinstance(error, UsageError)
                known = {**_HINTS, **hints}
                default = f"see {name} --help" if usage else DEBUG_HINT
                report(str(error), error.hint or known.get(type(error), default), shown)
                return EXIT_USAGE if usage else EXIT_FAILED
            if is_out_of_memory(error):
                report("memory ran out", MEMORY_HINT, shown)
                return EXIT_FAILED
            if isinstance(error, OSError):  # as of a full disk behind stdout
                report(f"the system refuses: {error}", _SYSTEM_HINT, shown)
                return EXIT_FAILED
            # A fault of ours: said plainly, shown whole with --debug.
            message = f"internal error: {type(error).__name__}: {error}"
            report(message, DEBUG_HINT, shown)
            return EXIT_FAILED
        finally:
            _settle()
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a program or a library, which the system loads, got no memory."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or any(words in str(error) for words in ("failed to map segment", "cannot allocate memory"))
    )


def report(message: str, hint: str, shown: BaseException | None = None) -> None:
    """Report an error on stderr in two lines, after the traceback of `shown`."""
    if shown is not None:
        traceback.print_exception(shown)
    _say("error", message, hint)


def warn(message: str, hint: str) -> None:
    """Report on stderr what does not keep a command from going on."""
    if not _unsaid.get():
        _say("warning", message, hint)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Leave warnings unsaid, of what is done again afterwards and says them then."""
    before = _unsaid.set(True)
    try:
        yield
    finally:
        _unsaid.reset(before)


def _say(kind: str, message: str, hint: str) -> None:
    with contextlib.suppress(OSError):  # as of a full disk behind stderr: there is no other place
        print(printable(f"{kind}: {' '.join(message.split())}"), file=sys.stderr)
        print(printable(f"hint: {' '.join(hint.split())}"), file=sys.stderr, flush=True)


def _settle() -> None:
    """Write nothing more to a stream that takes nothing, not at the interpreter's end either."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):  # none of an own descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_open(stream: IO[str] | None) -> None:
    """OSError if a stream that has all of a command's result was closed by who started it."""
    if stream is None or getattr(stream, CLOSED, False):
        raise OSError(errno.EBADF, "stdout is closed")
