"""The example page without its server: what its service worker keeps, and when it lets go.

`offline_driver.mjs` runs all scenarios, each in a browser of its own; each has its test here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.commands import SERVE
from tests.web.compiled import DRAFTED, Compiler
from tests.web.cpu_runtime import ENOUGH, QUANT, Runtime, user
from tests.web.dawn import run_driver

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PLUGIN = Path(__file__).parents[2] / "examples" / "web" / "offline" / "plugin.js"
QUESTION = "Who are you?"
Results = dict[str, dict[str, Any]]
MODEL = ("without_the_server",)
PAGE = (
    "update",
    "update_with_an_old_tab",
    "half_an_update",
    "edited_by_its_owner",
    "gone",
    "without_flags",
)


def run(page: Path, browser: str, folder: Path, **more: Any) -> Results:
    job = {
        "page": str(page),
        "plugin": str(PLUGIN),
        "chromium": browser,
        "output": str(folder),
        **more,
    }
    return Results(run_driver("offline_driver.mjs", job, folder, os.environ)["scenarios"])


@pytest.fixture(scope="module")
def of_the_page(
    browser: str, page: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    found = run(page, browser, tmp_path_factory.mktemp("offline"), leaveOut=MODEL)
    assert set(found) == set(PAGE), "every scenario has a test"
    return found


@pytest.mark.parametrize("name", PAGE)
def test_scenario(name: str, of_the_page: Results) -> None:
    assert of_the_page[name]["error"] is None, of_the_page[name]["error"]


@pytest.mark.parametrize("name", MODEL)
def test_scenario_with_a_model(
    name: str, browser: str, page: Path, compiled: Compiler, runtime: Runtime, folder: Path
) -> None:
    package = compiled(DRAFTED, "webgpu", QUANT)
    serve = [*SERVE, str(package)]
    serve += ["--page", str(page), "--port", "0", "--no-open"]
    reply, _ = runtime.greedy(runtime.prompt([user(QUESTION)]), ENOUGH)
    asked = {"question": QUESTION, "answer": runtime.decode(reply)}
    found = run(page, browser, folder, only=[name], serve=serve, **asked)
    assert found[name]["error"] is None, found[name]["error"]
