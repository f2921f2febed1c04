"""zig's libraries in the cache: built once for all environments, the same bytes from each."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets import metal
from gemma4_compile.targets.linker import cpp_library as libraries
from gemma4_compile.targets.linker import object_cache, zig
from tests.unit.targets.fake_zig import fake_zig

pytestmark = pytest.mark.package

QUICK = replace(metal.MACOS, name="quick")
"""Of one library, which takes seconds."""
BUILDS = """
import os, pathlib
folder = pathlib.Path(os.environ["ZIG_LOCAL_CACHE_DIR"], "o", "{number}")
folder.mkdir(parents=True)
(folder / "libcompiler_rt.a").write_bytes(b"!<arch>\\nzig/o/{number}/member.o")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and no lines while a slow machine compiles."""
    monkeypatch.setattr(zig, "SECONDS_BETWEEN_LINES", 600.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gemma4_compile"


def another_zig(folder: Path) -> Path:
    """The same zig, installed elsewhere: a program, and links to what it reads."""
    found = zig.find_zig()
    folder.mkdir()
    shutil.copy2(found, folder / "zig")
    (folder / "lib").symlink_to(found.parent / "lib")
    return folder / "zig"


@pytest.mark.slow
def test_libraries_are_built_once_for_every_environment(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    (first,) = libraries.cpp_library(QUICK, messages.append).values()
    assert messages == ["building the C++ library for quick (once per machine)"]
    other = another_zig(tmp_path / "elsewhere")
    monkeypatch.setattr(zig, "find_zig", lambda: other)
    assert libraries.cpp_library(QUICK, messages.append) == {"libcompiler_rt.a": first}
    assert len(messages) == 1
    assert [entry.name for entry in cache.iterdir()] == [first.parent.name]
    # And were it built there, it would have the same bytes.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    (second,) = libraries.cpp_library(QUICK).values()
    assert second != first
    assert second.read_bytes() == first.read_bytes()


def test_a_place_of_zig_does_not_stay_in_an_archive(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_zig(monkeypatch, tmp_path, BUILDS.format(number="0123456789abcdef" * 2))
    (found,) = libraries.cpp_library(QUICK).values()
    assert found.read_bytes() == b"!<arch>\nzig/o/" + b"0" * 32 + b"/member.o"


def test_a_damaged_library_is_built_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_zig(monkeypatch, tmp_path, BUILDS.format(number="a" * 32))
    (found,) = libraries.cpp_library(QUICK).values()
    good = found.read_bytes()
    found.write_bytes(good.replace(b"member", b"nember"))
    messages: list[str] = []
    assert [*libraries.cpp_library(QUICK, messages.append).values()] == [found]
    assert "is damaged" in messages[0]
    assert found.read_bytes() == good


def test_what_zig_did_not_build_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_zig(monkeypatch, tmp_path, "pass\n")
    with pytest.raises(TargetError, match=r"0 files of the name `libcompiler_rt\.a`"):
        libraries.cpp_library(QUICK)
    assert list(cache.iterdir()) == []


def test_progress_is_reported_while_it_is_built(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zig, "SECONDS_BETWEEN_LINES", 0.05)
    script = BUILDS.format(number="b" * 32) + "(folder / 'a.o').touch()\n"
    enough = tmp_path / "enough"
    script += f"import os, time\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.01)\n"
    fake_zig(monkeypatch, tmp_path, script)
    messages: list[str] = []

    def tell(message: str) -> None:
        messages.append(message)
        if len(messages) > 2 and "1 files" in message:
            enough.touch()

    libraries.cpp_library(QUICK, tell)
    assert messages[-1].startswith(f"{messages[0]}: 1 files, ")


def test_version_target_and_flags_decide_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    name = libraries.library_entry(QUICK)
    assert name == libraries.library_entry(replace(QUICK, compile_flags=(), link_flags=()))
    assert name != libraries.library_entry(replace(QUICK, library_flags=("-Os",)))
    assert name != libraries.library_entry(replace(QUICK, triple="x86_64-macos.13.0"))
    monkeypatch.setattr(zig, "version", lambda: "0.0.0")
    assert name != libraries.library_entry(QUICK)


def test_what_comes_with_the_package_is_used_where_it_is_whole(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_zig(monkeypatch, tmp_path, BUILDS.format(number="c" * 32))
    (built,) = libraries.cpp_library(QUICK).values()
    shutil.copytree(cache, tmp_path / "prebuilt")
    shutil.rmtree(cache)
    monkeypatch.setattr(object_cache, "PREBUILT", tmp_path / "prebuilt")
    fake_zig(monkeypatch, tmp_path, "raise SystemExit('not needed')\n")
    (found,) = libraries.cpp_library(QUICK).values()
    assert found == tmp_path / "prebuilt" / built.parent.name / built.name
    assert not cache.exists()
    found.write_bytes(b"damaged")
    fake_zig(monkeypatch, tmp_path, BUILDS.format(number="d" * 32))
    assert [*libraries.cpp_library(QUICK).values()] == [built]
