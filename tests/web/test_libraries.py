"""A package with every library in Chromium: what the page takes and keeps, and what it answers.

The device is SwiftShader, which has no 16-bit floats: of the libraries one fits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_answers import CONVERSATIONS
from tests.web.compiled import EVERY
from tests.web.dawn import run_driver
from tests.web.test_offline import PLUGIN
from tools.site import write_site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

(MEMORY,) = (each for each in CONVERSATIONS if each.name == "memory")
FITTING = ["default"]
# The driver compiles for a minute at each start: a second one is in test_firefox.py, scripted in
# test_page.py (libraries).
SCENARIOS = ("first_visit", "fixed_by_a_person")
AXE = PLUGIN.parents[1] / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def site(nine_libraries: Path, page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with a list of models, as one uploads it."""
    written = tmp_path_factory.mktemp("libraries") / "site"
    write_site(written, page, [nine_libraries])
    return written


@pytest.fixture(scope="module")
def played(
    site: Path, nine_libraries: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("libraries")
    job = {
        "group": "choice",
        "page": str(site),
        "packages": {},
        "chromium": chromium,
        "axe": str(AXE),
        "output": str(folder),
        "answers": {
            "address": f"/{nine_libraries.name}/",
            "turns": MEMORY.turns,
            "fitting": FITTING,
            "others": [library for library in EVERY if library not in FITTING],
        },
    }
    own_device = {name: value for name, value in os.environ.items() if name != "CHROMIUM_PRELOAD"}
    done = run_driver("page_driver.mjs", job, folder, own_device)
    scenarios: dict[str, Any] = done["scenarios"]
    return scenarios


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, played: dict[str, Any]) -> None:
    assert set(played) == set(SCENARIOS), "every scenario has a test"
    assert played[name]["error"] is None, played[name]["error"]
