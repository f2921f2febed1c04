"""Signals that end a process; every command hears them, so nothing is loaded for it."""

from __future__ import annotations

import signal


def ends() -> tuple[int, ...]:
    """Signals to end. Windows sends the second one for Ctrl-Break, and as a console is closed."""
    names = ("SIGTERM", "SIGBREAK")
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))
