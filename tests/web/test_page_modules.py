"""The example page's modules that need no browser: its own tests, and its types."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.child import run_within
from tests.web.dawn import TIMEOUT_S

PAGE = Path(__file__).parents[2] / "examples" / "web"


def test_modules() -> None:
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed (apt-get install nodejs)")
    if not (PAGE / "node_modules" / "vitest").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")
    done = run_within(TIMEOUT_S, ["npm", "test", "--silent"], cwd=PAGE)
    assert done.returncode == 0, done.stdout + done.stderr
