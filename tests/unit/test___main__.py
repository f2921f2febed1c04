"""`python -m gemma4_compile` is the command line."""

import subprocess
import sys

from gemma4_compile import __version__


def test_module_runs_the_command_line() -> None:
    command = [sys.executable, "-m", "gemma4_compile", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"gemma4-compile {__version__}\n"
