"""The example page without its server: what its service worker keeps, and when it lets go.

`offline_driver.mjs` runs all scenarios, each in a browser of its own; each has its test here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.web.compiled import TINY, Compiler
from tests.web.cpu_runtime import ENOUGH, QUANT, Runtime, user
from tests.web.dawn import run_driver

pytestmark = pytest.mark.browser

PLUGIN = Path(__file__).parents[2] / "examples" / "web" / "offline" / "plugin.js"
QUESTION = "Who are you?"
SCENARIOS = (
    "without_the_server",
    "update",
    "update_with_an_old_tab",
    "half_an_update",
    "edited_by_its_owner",
    "gone",
    "without_flags",
)


@pytest.fixture(scope="module")
def scenarios(
    browser: str,
    page: Path,
    compiled: Compiler,
    runtime: Runtime,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Mapping[str, Any]]:
    package = compiled(TINY, "webgpu", QUANT)
    serve = [sys.executable, "-m", "gemma4_compile.runtime.server.cli", str(package)]
    reply, _ = runtime.greedy(runtime.prompt([user(QUESTION)]), ENOUGH)
    folder = tmp_path_factory.mktemp("offline")
    job = {
        "serve": [*serve, "--page", str(page), "--port", "0", "--no-open"],
        "page": str(page),
        "plugin": str(PLUGIN),
        "chromium": browser,
        "output": str(folder),
        "question": QUESTION,
        "answer": runtime.decode(reply),
    }
    result = run_driver("offline_driver.mjs", job, folder, os.environ)
    told: Mapping[str, Mapping[str, Any]] = result["scenarios"]
    return told


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    assert scenarios[name]["error"] is None, scenarios[name]["error"]


def test_every_scenario_has_a_test(scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    assert set(scenarios) == set(SCENARIOS)
