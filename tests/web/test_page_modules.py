"""The example page's modules that need no browser: its own tests, and its types."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "examples" / "web"


def test_modules() -> None:
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed (apt-get install nodejs)")
    if not (PAGE / "node_modules" / "vitest").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")
    command = ["npm", "test", "--silent"]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
