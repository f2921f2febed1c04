"""Which signals end a process, by system."""

from __future__ import annotations

import signal

import pytest

from gemma4_compile.system.end_signals import ends


def test_ctrl_break_ends_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends() == (signal.SIGTERM,)
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    assert ends() == (signal.SIGTERM, 21)
