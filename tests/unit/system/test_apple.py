"""What macOS says of its chip, from programs that are made up."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from gemma4_compile.system import apple

SAID = {"sysctl": "Apple M3 Max\n", "ioreg": '  {\n    "gpu-core-count" = 30\n  }\n'}


def say(command: Sequence[str]) -> str:
    return SAID[command[0].rpartition("/")[2]]


def test_the_system_tells_name_and_cores() -> None:
    assert (apple.apple_chip(say), apple.apple_gpu_cores(say)) == ("Apple M3 Max", 30)
    assert (apple.apple_chip(lambda _: ""), apple.apple_gpu_cores(lambda _: "")) == (None, None)
    assert apple.apple_gpu_cores(lambda _: '"gpu-core-count" = <unknown>') is None


def test_its_programs_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple, "_SYSCTL", (sys.executable, "-c", "print('Apple M1')"))
    assert apple.apple_chip() == "Apple M1"


@pytest.mark.parametrize(
    "command", [("/nowhere/sysctl",), (sys.executable, "-c", "print('Apple M1'); exit(1)")]
)
def test_a_program_that_is_missing_or_fails_tells_nothing(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apple, "_SYSCTL", command)
    assert apple.apple_chip() is None
