"""Entry points of the installed commands, before anything heavy is loaded.

Loading takes a second or more. What ends it, Ctrl-C or an installation that is not whole, is
reported as every other end of a command. Ctrl-C and SIGTERM end a command without a traceback from
here on, so nothing of ours is imported before they are taken.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # nothing of ours is loaded before signals are taken
    from gemma4_compile.options.command import Command, OptionsT

NO_HOME = "/nonexistent"  # as Debian has it for users without a home
_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""Signals to end; Windows sends the second one for Ctrl-Break and where a console is closed."""
_REINSTALL = (
    "install gemma4-compile again, in this environment: "
    "`pip install --force-reinstall .` in its clone"
)


def run_compile() -> int:
    """`gemma4-compile`; each of these returns the exit status, of wrong arguments at once."""
    begin()
    from gemma4_compile.options.compile import COMMAND

    options = COMMAND.parsed()
    if isinstance(options, int):
        return options
    from gemma4_compile.compile.library_processes import begun_early

    with begun_early(options.libraries_to_make):
        return _run(COMMAND, options, "gemma4_compile.cli.compile", compares=options.verify)


def run_chat() -> int:
    """`gemma4-chat`."""
    begin()
    from gemma4_compile.options.chat import COMMAND

    return _run(COMMAND, COMMAND.parsed(), "gemma4_compile.runtime.cli")


def run_serve() -> int:
    """`gemma4-serve`."""
    begin()
    from gemma4_compile.options.serve import COMMAND

    return _run(COMMAND, COMMAND.parsed(), "gemma4_compile.runtime.serve")


def run_verify() -> int:
    """`gemma4-verify`."""
    begin()
    from gemma4_compile.options.verify import COMMAND

    return _run(COMMAND, COMMAND.parsed(), "gemma4_compile.cli.verify", compares=True)


def begin() -> None:
    """Take signals, give streams and a home, whatever the program was started with."""
    for number in (signal.SIGINT, *_ENDS):
        signal.signal(number, _leave)
    open_streams()
    if sys.platform == "win32":
        use_utf8(sys.stdin, sys.stdout, sys.stderr)
    if os.path.expanduser("~") == "~":  # TVM fails to load, and a folder `~` would be made here
        os.environ["HOME"] = NO_HOME


def _leave(signum: int, frame: FrameType | None) -> None:
    """End at once, while a command is loaded and after it has ended: nothing is unfinished then.

    Python's own way would be a traceback of what is loaded, or of the threads that are joined.
    """
    os._exit(128 + (signal.SIGTERM if signum in _ENDS else signum))


def open_streams() -> None:
    """Give a program that was started without a standard stream an empty one in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            stream = os.fdopen(nowhere, mode, encoding="utf-8")
            stream.closed_at_start = True  # type: ignore[attr-defined]  # `process.CLOSED`
            setattr(sys, name, stream)


def use_utf8(*streams: TextIO) -> None:
    """Read and write UTF-8: Windows has another code for files and pipes, which lacks letters.

    Its consoles take any letter, and are asked for nothing.
    """
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


def _run(
    command: Command[OptionsT], options: OptionsT | int, module: str, *, compares: bool = False
) -> int:
    """Load a command's module and run it, unless its options are an exit status.

    What compares with torch loads it, before TVM.
    """
    if isinstance(options, int):
        return options
    from gemma4_compile.options.process import (
        EXIT_FAILED,
        EXIT_INTERRUPTED,
        EXIT_TERMINATED,
        MEMORY_HINT,
        is_out_of_memory,
        report,
    )
    from gemma4_compile.system.limits import has_address_space_limit
    from gemma4_compile.system.loading import without_torch

    try:
        with contextlib.nullcontext() if compares else without_torch():
            loaded = importlib.import_module(module)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # whatever a library does that is not whole, or gets no memory
        shown = error if options.debug else None
        what = str(error) if isinstance(error, (ImportError, OSError)) else repr(error)
        # Without memory they fail anyhow, and with modules that are loaded in part.
        is_odd = not isinstance(error, (ImportError, OSError)) or what.startswith("cannot import")
        is_short = is_out_of_memory(error) or (is_odd and has_address_space_limit())
        hint = MEMORY_HINT if is_short else _REINSTALL
        report(f"what this command needs cannot be loaded: {what}", hint, shown)
        return EXIT_FAILED
    status = command.run(loaded.run, options)
    if status in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        os._exit(status)  # all is cleared up; threads of libraries may still compute for long
    return status
