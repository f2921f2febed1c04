"""zig as a program: found, run, ended."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import zig
from tests.unit.targets.fake_zig import fake_zig


def test_missing_zig_has_a_hint_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TargetError, match="ziglang") as caught:
        zig.find_zig()
    assert "pip install" in (caught.value.hint or "")


def test_zig_runs() -> None:
    done = subprocess.run([zig.find_zig(), "version"], capture_output=True, text=True)
    assert done.returncode == 0


def test_the_cache_is_the_one_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a person has set another, what zig makes there is found by nobody."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "elsewhere"))
    names = "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"
    script = f"import os\nfor name in {names}: print(os.environ[name])\nraise SystemExit(3)\n"
    fake_zig(monkeypatch, tmp_path, script)
    with pytest.raises(TargetError) as caught:
        zig.run(["c++"], tmp_path, tmp_path / "cache")
    assert str(caught.value).splitlines()[1:] == [str(tmp_path / "cache")] * 2


def test_a_long_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zig, "SECONDS_BETWEEN_LINES", 0.05)
    enough = tmp_path / "enough"
    script = f"import os, time\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.01)\n"
    fake_zig(monkeypatch, tmp_path, script)
    told: list[float] = []

    def tell(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 2:
            enough.touch()

    zig.run([], tmp_path, tmp_path, tell)
    assert len(told) >= 2
    assert told == sorted(told)


def test_an_interrupted_run_ends_the_compilers_that_zig_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', "
    child += "'import time; time.sleep(60)'])\n"
    child += "open('pid.new', 'w').write(str(child.pid))\nimport os\nos.rename('pid.new', 'pid')\n"
    fake_zig(monkeypatch, tmp_path, f"{child}child.wait()\n")

    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        zig.run([], tmp_path, tmp_path)
    pid = (tmp_path / "pid").read_text()
    for _ in range(6000):
        state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
        if state.stdout.strip()[:1] in ("", "Z"):
            return
        time.sleep(0.01)
    os.kill(int(pid), signal.SIGKILL)
    pytest.fail("a compiler is still running")


@pytest.mark.parametrize("wheel", ["0.17.0", "0.17.0.post0"])
def test_a_later_wheel_is_the_same_zig(wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: wheel)
    assert zig.version() == "0.17.0"
