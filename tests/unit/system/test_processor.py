"""The processor's name, where the system tells it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gemma4_compile.system import processor


def test_it_is_the_first_that_the_system_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor : 0\nmodel name : Some CPU: 3 GHz\nmodel name : another\n")
    monkeypatch.setattr(processor, "_CPU_LIST", listed)
    assert processor.cpu_name() == "Some CPU: 3 GHz"


def test_elsewhere_it_is_what_python_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPU_LIST", tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert processor.cpu_name() == "arm64"
