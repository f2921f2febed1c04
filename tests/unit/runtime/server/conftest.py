"""A server of a scripted engine for a file of tests; a file that needs another defines its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live_server import TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine([])


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(engine, TOOL_TEMPLATE) as live:
        yield live
