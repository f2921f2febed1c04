"""Commands in processes of their own, as their scripts begin them, which keeps torch out."""

from __future__ import annotations

import sys


def _begins(function: str) -> tuple[str, ...]:
    program = f"import sys; from gemma4_compile.cli import start; sys.exit(start.{function}())"
    return (sys.executable, "-c", program)


CHAT = _begins("run_chat")
SERVE = _begins("run_serve")
