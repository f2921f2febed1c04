"""What a server tells of itself, and whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

KEY = "secret"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(encode("It is sunny."))


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(engine, TOOL_TEMPLATE, api_key=KEY) as live:
        yield live


def talk(live: Live, **options: Any) -> Any:
    client = live.client(KEY)
    return client.chat.completions.create(model="scripted", messages=QUESTION, **options)


def test_slots_say_what_they_do(live: Live, engine: ScriptedEngine) -> None:
    gate, running = threading.Event(), threading.Event()

    def wait() -> None:
        if engine.said:  # the reply is being written
            running.set()
            gate.wait(60)

    engine.before_step = wait
    thread = threading.Thread(target=lambda: talk(live))
    try:
        thread.start()
        assert running.wait(60)
        (slot,) = json.loads(live.request("GET", "/slots", Authorization=f"Bearer {KEY}")[2])[
            "slots"
        ]
    finally:
        engine.before_step = lambda: None
        gate.set()
        thread.join(60)
    assert slot["doing"] == "writes"
    assert slot["prompt"] > 16
    assert 0 < slot["held"] <= slot["prompt"] + slot["written"]


def test_both_ask_for_the_key(live: Live) -> None:
    for path in ("/metrics", "/slots"):
        assert live.request("GET", path)[0] == 401
