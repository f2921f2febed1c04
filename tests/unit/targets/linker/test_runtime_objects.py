"""Our C++ as objects: compiled once, by what they are made from."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import runtime_objects as objects
from gemma4_compile.targets.linker import zig
from gemma4_compile.targets.webgpu import WASM
from tests.marks import slow_unless
from tests.unit.targets.fake_zig import fake_zig

pytestmark = pytest.mark.package  # of the runtime: seconds each

QUICK = replace(WASM, name="quick", units=("wasm_support.cc",))
"""One small unit of the real ones."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and no lines while a slow machine compiles."""
    monkeypatch.setattr(zig, "SECONDS_BETWEEN_LINES", 600.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gemma4_compile"


def test_objects_are_compiled_once_and_found_again(cache: Path) -> None:
    messages: list[str] = []
    first = objects.runtime_objects(QUICK, messages.append)
    assert len(messages) == 1
    content = first[0].read_bytes()
    again = objects.runtime_objects(QUICK, messages.append)
    assert again == first
    assert len(messages) == 1
    assert first[0].read_bytes() == content
    assert [path for path in cache.iterdir() if path.name.startswith("build-")] == []


@pytest.mark.slow
def test_objects_are_the_same_bytes_in_another_directory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = objects.runtime_objects(QUICK)[0].read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another directory"))
    second = objects.runtime_objects(QUICK)[0]
    assert (tmp_path / "another directory") in second.parents
    assert second.read_bytes() == first


def damage(kind: str, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "bit":
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    elif kind == "missing":
        path.unlink()
    elif kind == "no hash":
        path.with_name(f"{path.name}.sha256").unlink()
    elif kind == "hash":
        path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    else:
        path.unlink()
        os.mkfifo(path)


@pytest.mark.parametrize(
    "kind",
    slow_unless(
        lambda kind: kind == "bit",
        ["empty", "bit", "missing", "no hash", "hash", "pipe"],
    ),
)
def test_a_damaged_object_is_compiled_again(kind: str, cache: Path) -> None:
    (path,) = objects.runtime_objects(QUICK)
    good = path.read_bytes()
    damage(kind, path)
    messages: list[str] = []
    assert objects.runtime_objects(QUICK, messages.append) == [path]
    assert "is damaged: compiling it again" in messages[0]
    assert path.read_bytes() == good
    assert [entry.name for entry in cache.iterdir()] == [path.parent.name]
    assert objects.runtime_objects(QUICK, messages.append) == [path]
    assert len(messages) == 2


@pytest.mark.parametrize(
    "kind", slow_unless(lambda kind: kind == "link", ["link", "file", "of another user"])
)
def test_an_entry_that_was_planted_is_not_used(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = objects.runtime_objects(QUICK)
    entry = path.parent
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        entry.rename(tmp_path / "elsewhere")
        if kind == "link":
            entry.symlink_to(tmp_path / "elsewhere")
        else:
            entry.write_text("in the way")
    named = "belongs to another user" if kind == "of another user" else entry.name
    with pytest.raises(TargetError, match=named):
        objects.runtime_objects(QUICK)
    assert kind == "of another user" or (tmp_path / "elsewhere" / path.name).exists()


@pytest.mark.slow
def test_objects_are_on_the_disk_before_they_have_their_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(path: Path, target: Path) -> None:
        synced.append(f"-> {target.name}")
        real_rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", rename)
    (path,) = objects.runtime_objects(QUICK)
    expected = {path.name, f"{path.name}.sha256", "objects"}
    assert set(synced[:3]) == expected
    assert synced[3:] == [f"-> {path.parent.name}", cache.name]


def test_flags_and_sources_decide_the_cache_entry() -> None:
    sources = {"a.cc": b"int a;"}
    key = objects.entry_name(QUICK, sources)
    assert key == objects.entry_name(QUICK, dict(sources))
    assert key != objects.entry_name(QUICK, {"a.cc": b"int b;"})
    assert key != objects.entry_name(QUICK, {"b.cc": b"int a;"})
    assert key != objects.entry_name(replace(QUICK, compile_flags=("-O2",)), sources)
    assert key == objects.entry_name(replace(QUICK, link_flags=("-s",)), sources)


@pytest.mark.slow
def test_two_builds_at_once_leave_one_whole_entry(cache: Path) -> None:
    results: list[list[Path]] = []
    threads = [
        threading.Thread(target=lambda: results.append(objects.runtime_objects(QUICK)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
    assert [path.name for path in cache.iterdir()] == [results[0][0].parent.name]


def test_our_sources_replace_those_of_the_wheel() -> None:
    sources = objects.collect_sources(replace(QUICK, left_out=("src/runtime/vm/rnn_state.cc",)))
    own = objects.NATIVE / "shims" / "src" / "runtime" / "file_utils.cc"
    assert sources["src/runtime/file_utils.cc"] == own.read_bytes()
    assert sources["src/runtime/vm/rnn_state.cc"] == b""
    assert "kv_state.cc" in sources
    assert not any(name.startswith(("/", "shims/")) for name in sources)


def test_failed_zig_shows_its_last_lines_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys\nfor i in range(90): print('line', i, file=sys.stderr)\nsys.exit(7)\n"
    fake_zig(monkeypatch, tmp_path, script)
    with pytest.raises(TargetError, match="exit code 7") as caught:
        objects.runtime_objects(QUICK)
    assert "line 89" in str(caught.value)
    assert "line 9\n" not in str(caught.value)
    assert str(cache) in (caught.value.hint or "")
    assert list(cache.iterdir()) == []


def test_full_disk_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_zig(monkeypatch, tmp_path, "import sys\nsys.exit('error: NoSpaceLeft')\n")
    with pytest.raises(TargetError) as caught:
        objects.runtime_objects(QUICK)
    assert "free some space" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_cache_directory_that_cannot_be_written(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(TargetError, match="cannot write"):
        objects.runtime_objects(QUICK)


def test_cache_directory_that_is_a_file(cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(TargetError, match="cannot write") as caught:
        objects.runtime_objects(QUICK)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")
