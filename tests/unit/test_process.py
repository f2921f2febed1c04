"""How commands end, and the memory that they say they took."""

import subprocess
import sys

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.process import EXIT_FAILED, EXIT_USAGE, peak_memory_bytes, report

ASK = "from gemma4_compile.process import peak_memory_bytes; print(peak_memory_bytes())"


def test_errors_are_told_with_their_hints(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(UsageError("no", hint="try yes"), debug=False) == EXIT_USAGE
    assert capsys.readouterr().err == "error: no\nhint: try yes\n"
    assert report(ArtifactError("broken"), debug=True) == EXIT_FAILED
    told = capsys.readouterr().err
    assert told.endswith("error: broken\n")
    assert "ArtifactError: broken" in told


def test_a_childs_peak_is_its_own() -> None:
    ballast = bytearray(b"x") * (256 << 20)
    mine = peak_memory_bytes()
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True)
    assert mine is not None
    assert mine > len(ballast)
    assert 0 < int(asked.stdout) < 256 << 20
