"""Torch stays out while the compiler is loaded, and is what it was afterwards."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from gemma4_compile.system.loading import without_torch


def test_it_cannot_be_imported_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with without_torch(), pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch")
    assert "torch" not in sys.modules


def test_what_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", loaded)
    with without_torch():
        assert importlib.import_module("torch") is loaded
    assert sys.modules["torch"] is loaded


def test_the_process_for_libraries_loads_none() -> None:
    program = (
        "import sys, os\n"
        "from gemma4_compile.compile import library_worker\n"
        "assert not {'tvm', 'torch', 'numpy'} & set(sys.modules)\n"
        "from gemma4_compile.system.loading import without_torch\n"
        "with without_torch(): import gemma4_compile.compile.library_build\n"
        "print('tvm' in sys.modules, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr
