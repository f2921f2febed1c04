"""Steps of a package by each that can drive its device."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from gemma4_compile.runtime.check.diagnose import diagnose
from gemma4_compile.runtime.check.launcher_check import (
    Steps,
    comparison,
    main,
    measured_apart,
)
from gemma4_compile.runtime.device import metal_launcher

FOUND = Steps(1.5, [3, 4], 0.01, 0.008, {"launches": 10, "waits": 2})


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_process_has_the_environment_and_answers(tmp_path: Path) -> None:
    answer = json.dumps(asdict(FOUND))
    program = (
        "import os, sys\n"
        f"assert sys.argv[1:] == [{str(tmp_path)!r}, 'metal']\n"
        f"assert os.environ[{metal_launcher.SWITCH!r}] == 'own'\n"
        f"print({answer!r})"
    )
    assert measured_apart(tmp_path, "metal", "own", command=python(program)) == FOUND


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ["ended with signal SIGSEGV:"]),
        ("import sys; sys.exit('no device')", ["ended with exit code 1:", "no device"]),
        ("print('{}')", ["its answer is none: '{}\\n'"]),
        ("print('what')", ["its answer is none: 'what\\n'"]),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_what_becomes_of_a_process_is_told(program: str, lines: list[str], tmp_path: Path) -> None:
    assert measured_apart(tmp_path, None, "own", command=python(program)) == lines


def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    waits = python("import sys; sys.stdin.read(); import threading; threading.Event().wait()")
    found = measured_apart(tmp_path, None, "own", command=waits, most_seconds=1)
    assert found == ["not done after 1 s"]


def test_both_are_compared() -> None:
    lines = comparison({"tvm": FOUND, "own": FOUND})
    assert "GEMMA4_METAL=own: a step: 10.00 ms, with a drawn token: 8.00 ms" in lines
    assert "GEMMA4_METAL=own: of 2 drawn tokens: launches: 10, waits: 2" in lines
    assert lines[-1] == "both give the same tokens"
    other = Steps(1.5, [3, 5], 0.01, 0.008)
    assert comparison({"tvm": FOUND, "own": other})[-1] == "they give different tokens"
    failed = comparison({"tvm": FOUND, "own": ["ended with signal SIGSEGV:"]})
    assert failed[-1] == "GEMMA4_METAL=own: ended with signal SIGSEGV:"


def test_a_package_is_measured(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tiny_package), "cpu"])
    found = Steps(**json.loads(capsys.readouterr().out))
    assert len(found.tokens) > 0
    assert min(found.loaded, found.step, found.drawn) > 0
    assert found.counts == {}


def test_a_diagnosis_tries_both_where_there_are_two(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def apart(directory: Path, named: str | None, word: str) -> Steps | list[str]:
        tried.append((directory, named, word))
        return FOUND if word == "tvm" else ["ended with signal SIGABRT:"]

    module = "gemma4_compile.runtime.check.diagnose"
    for part in ("_kernels", "_model"):
        monkeypatch.setattr(f"{module}.{part}", lambda *_: None)
    monkeypatch.setattr(f"{module}.measured_apart", apart)
    diagnose(tiny_package, tmp_path / "cpu.txt", lambda _: None)
    assert not tried
    monkeypatch.setattr(f"{module}.WITH_LAUNCHER", {"cpu": None})
    outcome = diagnose(tiny_package, tmp_path / "two.txt", lambda _: None)
    assert tried == [(tiny_package, None, "tvm"), (tiny_package, None, "own")]
    text = (tmp_path / "two.txt").read_text()
    assert "GEMMA4_METAL=own: ended with signal SIGABRT:" in text
    # What nobody is given unless they ask for it is no fault of the package.
    assert outcome.faults == 0
