"""Entry points of the installed commands, before anything heavy is loaded.

Loading takes a second or more. What ends it, Ctrl-C or an installation that is not whole, is
reported as every other end of a command.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

from gemma4_compile import chat_options, options, serve_options, verify_options
from gemma4_compile.process import EXIT_FAILED, EXIT_INTERRUPTED, report

VERIFICATION = "gemma4_compile.verification.cli"
_REINSTALL = (
    "install gemma4-compile again, in this environment: "
    "`pip install --force-reinstall .` in its clone"
)


def run_compile() -> int:
    """`gemma4-compile`; each of these returns the exit status, of wrong arguments at once."""
    open_streams()
    return options.main() or _run("gemma4_compile.cli")


def run_chat() -> int:
    """`gemma4-chat`."""
    open_streams()
    return chat_options.main() or _run("gemma4_compile.runtime.cli")


def run_serve() -> int:
    """`gemma4-serve`."""
    open_streams()
    return serve_options.main() or _run("gemma4_compile.runtime.server.cli")


def run_verify() -> int:
    """`gemma4-verify`."""
    open_streams()
    return verify_options.main() or _run(VERIFICATION)


def open_streams() -> None:
    """Give a program that was started without a standard stream an empty one in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


def _run(module: str) -> int:
    """Load a command's module and run its `main`."""
    try:
        with _without_torch(module):
            command = importlib.import_module(module)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (ImportError, OSError) as error:  # OSError: a library that the system cannot load
        shown = error if "--debug" in sys.argv[1:] else None
        report(f"what this command needs cannot be loaded: {error}", _REINSTALL, shown)
        return EXIT_FAILED
    status: int = command.main()
    return status


@contextlib.contextmanager
def _without_torch(module: str) -> Iterator[None]:
    """Keep TVM from loading torch, where it is installed: four seconds for nothing.

    It loads torch for the arrays that a program may hold, of which there are none here. What
    compares with torch loads it, and then it has to come first.
    """
    verifies = any(argument.startswith("--veri") for argument in sys.argv[1:])
    if "torch" in sys.modules or verifies or module == VERIFICATION:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not installed", to an import
    try:
        yield
    finally:
        del sys.modules["torch"]
