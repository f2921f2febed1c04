"""What `make wheel` puts into the wheel is what a machine's cache would hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.targets import cpu, metal, webgpu
from gemma4_compile.targets.linker import object_cache
from gemma4_compile.targets.linker.cpp_library import cpp_library, library_entry
from gemma4_compile.targets.linker.runtime_objects import (
    Platform,
    collect_sources,
    entry_name,
    runtime_objects,
)
from tools import prebuild

pytestmark = pytest.mark.package

QUICK = replace(metal.MACOS, name="quick", units=("kv_state.cc",))


@pytest.mark.slow
def test_a_prebuilt_platform_is_found_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = tmp_path / "prebuilt"
    output.mkdir()
    (output / "of an earlier build").touch()
    prebuild.prebuild(output, (QUICK,))
    entries = {entry_name(QUICK, collect_sources(QUICK)), library_entry(QUICK), "licences-quick"}
    assert {path.name for path in output.iterdir()} == entries
    for name in abi.LICENCE_FILES:
        assert "the objects for quick" in (output / "licences-quick" / name).read_text("utf-8")
    built = [path.read_bytes() for path in runtime_objects(QUICK)]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(object_cache, "PREBUILT", output)
    messages: list[str] = []
    found = runtime_objects(QUICK, messages.append)
    found += cpp_library(QUICK, messages.append).values()
    assert messages == []
    assert {path.parent.parent for path in found} == {output}
    assert [path.read_bytes() for path in found[:1]] == built
    assert not (tmp_path / "empty").exists()


def test_setup_compiles_what_tests_link(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def objects(target: Platform, progress: object) -> list[Path]:
        asked.append(f"objects for {target.name}")
        return [Path("objects", "kv_state.o")]

    def library(target: Platform, progress: object) -> dict[str, Path]:
        asked.append(f"archives for {target.name}")
        return {"libc++.a": Path("archives", "libc++.a")}

    monkeypatch.setattr(prebuild, "runtime_objects", objects)
    monkeypatch.setattr(prebuild, "cpp_library", library)
    prebuild.main([])
    here = cpu.this_machine()
    # The launcher for Metal is tested on every machine; on a Mac that is the platform of packages.
    others = () if metal.with_launcher(here) == metal.MACOS else (here.name,)
    names = ("wasm32", here.name, "darwin-aarch64", *others)
    assert asked == [f"{kind} for {name}" for name in names for kind in ("objects", "archives")]


def test_every_platform_that_packages_are_made_for_is_prebuilt() -> None:
    names = [target.name for target in prebuild.PLATFORMS]
    expected = ["wasm32", "darwin-aarch64", "linux-x86_64", "linux-aarch64", "windows-x86_64"]
    assert names == expected
    assert webgpu.WASM in prebuild.PLATFORMS
    assert cpu.native_platform("linux", "aarch64") in prebuild.PLATFORMS
