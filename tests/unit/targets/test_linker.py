import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets import linker
from gemma4_compile.targets.webgpu import WASM

QUICK = replace(WASM, name="quick", units=("wasm_support.cc",))
"""One small unit of the real ones."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory; zig's own stays, else every test would rebuild its libraries."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(linker.cache_directory() / "zig"))
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(linker.cache_directory() / "zig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gemma4_compile"


def fake_zig(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    zig = folder / "zig"
    zig.write_text(f"#!{sys.executable}\n{script}")
    zig.chmod(zig.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(linker, "find_zig", lambda: zig)


def test_objects_are_compiled_once_and_found_again(cache: Path) -> None:
    messages: list[str] = []
    first = linker.runtime_objects(QUICK, messages.append)
    assert len(messages) == 2
    content = first[0].read_bytes()
    again = linker.runtime_objects(QUICK, messages.append)
    assert again == first
    assert len(messages) == 2
    assert first[0].read_bytes() == content
    assert [path for path in cache.iterdir() if path.name.startswith("build-")] == []


def test_objects_are_the_same_bytes_in_another_directory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = linker.runtime_objects(QUICK)[0].read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another directory"))
    second = linker.runtime_objects(QUICK)[0]
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


@pytest.mark.parametrize("kind", ["empty", "bit", "missing", "no hash", "hash", "pipe"])
def test_a_damaged_object_is_compiled_again(kind: str, cache: Path) -> None:
    (path,) = linker.runtime_objects(QUICK)
    good = path.read_bytes()
    damage(kind, path)
    messages: list[str] = []
    assert linker.runtime_objects(QUICK, messages.append) == [path]
    assert "is damaged: compiling it again" in messages[0]
    assert path.read_bytes() == good
    assert [entry.name for entry in cache.iterdir()] == [path.parent.name]
    assert linker.runtime_objects(QUICK, messages.append) == [path]
    assert len(messages) == 3


@pytest.mark.parametrize("kind", ["link", "file", "of another user"])
def test_an_entry_that_was_planted_is_not_used(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = linker.runtime_objects(QUICK)
    entry = path.parent
    if kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        entry.rename(tmp_path / "elsewhere")
        if kind == "link":
            entry.symlink_to(tmp_path / "elsewhere")
        else:
            entry.write_text("in the way")
    with pytest.raises(TargetError, match=entry.name):
        linker.runtime_objects(QUICK)
    assert kind == "of another user" or (tmp_path / "elsewhere" / path.name).exists()


def test_objects_are_on_the_disk_before_they_have_their_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        synced.append(f"-> {target.name}")
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", rename)
    (path,) = linker.runtime_objects(QUICK)
    expected = {path.name, f"{path.name}.sha256", "objects"}
    assert set(synced[:3]) == expected
    assert synced[3:] == [f"-> {path.parent.name}", cache.name]


def test_a_library_without_its_functions_is_refused(tmp_path: Path) -> None:
    """As an empty object leaves it: zig links what there is."""
    whole, native = replace(QUICK, is_whole=True), replace(QUICK, is_whole=False)
    names = [f"{name}\0".encode() for name in linker.abi.KV_FUNCTIONS]
    library = tmp_path / "library"
    library.write_bytes(b"".join(names))
    linker._check_functions(library, whole)
    with pytest.raises(TargetError, match="lacks 12 functions"):
        linker._check_functions(library, native)
    library.write_bytes(b"".join(names[:-1]))
    with pytest.raises(TargetError, match="gemma4_kv_length"):
        linker._check_functions(library, whole)


def test_flags_and_sources_decide_the_cache_entry() -> None:
    sources = {"a.cc": b"int a;"}
    key = linker._cache_key(QUICK, sources)
    assert key == linker._cache_key(QUICK, dict(sources))
    assert key != linker._cache_key(QUICK, {"a.cc": b"int b;"})
    assert key != linker._cache_key(QUICK, {"b.cc": b"int a;"})
    assert key != linker._cache_key(replace(QUICK, compile_flags=("-O2",)), sources)
    assert key == linker._cache_key(replace(QUICK, link_flags=("-s",)), sources)


def test_two_builds_at_once_leave_one_whole_entry(cache: Path) -> None:
    results: list[list[Path]] = []
    threads = [
        threading.Thread(target=lambda: results.append(linker.runtime_objects(QUICK)))
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
    sources = linker._collect_sources(replace(QUICK, left_out=("src/runtime/vm/rnn_state.cc",)))
    own = linker.NATIVE / "shims" / "src" / "runtime" / "file_utils.cc"
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
        linker.runtime_objects(QUICK)
    assert "line 89" in str(caught.value)
    assert "line 9\n" not in str(caught.value)
    assert str(cache) in (caught.value.hint or "")
    assert list(cache.iterdir()) == []


def test_full_disk_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_zig(monkeypatch, tmp_path, "import sys\nsys.exit('error: NoSpaceLeft')\n")
    with pytest.raises(TargetError) as caught:
        linker.runtime_objects(QUICK)
    assert "free some space" in (caught.value.hint or "")


def test_missing_zig_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TargetError, match="ziglang") as caught:
        linker.find_zig()
    assert "pip install" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_cache_directory_that_cannot_be_written(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(TargetError, match="cannot write"):
        linker.runtime_objects(QUICK)


def test_cache_directory_that_is_a_file(cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(TargetError, match="cannot write") as caught:
        linker.runtime_objects(QUICK)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


def test_zig_runs() -> None:
    done = subprocess.run([linker.find_zig(), "version"], capture_output=True, text=True)
    assert done.returncode == 0
