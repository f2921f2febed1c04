"""Kept choices: for one package with these libraries on these devices, and no other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.package.tuned import keep_choice, kept_choice


def test_a_choice_is_of_its_package_libraries_and_devices(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    provenance, devices = read_provenance(tiny_package), {"cpu": "a CPU"}
    assert kept_choice(tiny_package, provenance, devices) is None
    keep_choice(tiny_package, provenance, devices, "cpu")
    assert kept_choice(tiny_package, provenance, devices) == "cpu"
    assert kept_choice(tiny_package, provenance, {"cpu": "another CPU"}) is None
    other = shutil.copytree(tiny_package, tmp_path / "other")
    assert kept_choice(other, provenance, devices) is None
    changed = replace(provenance, files={**provenance.files, "model.so": (1, "0" * 64)})
    assert kept_choice(tiny_package, changed, devices) is None
    keep_choice(tiny_package, provenance, devices, "cuda")
    assert kept_choice(tiny_package, provenance, devices) == "cuda"
