"""A program in the place of zig."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from gemma4_compile.targets.linker import zig


def fake_zig(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have every call of zig run a Python script."""
    program = folder / "zig"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(zig, "find_zig", lambda: program)
