"""A server of a scripted engine, and Anthropic's own client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.live_server import LOCAL, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine([])


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(engine, TOOL_TEMPLATE) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Any:
    anthropic = pytest.importorskip("anthropic")
    url = f"http://{LOCAL}:{live.port}"
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
