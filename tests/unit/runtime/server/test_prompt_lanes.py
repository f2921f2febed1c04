"""Prompts that take long: they end with their time and their client, and others do not wait."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gemma4_compile.runtime.server import prompt_lanes
from tests.live_server import LOCAL, PATIENCE_S, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

# Takes the cube of the number of messages, and next to no text.
CUBIC = (
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% if c.role == 'x' %}"
    "{% endif %}{% endfor %}{% endfor %}{% endfor %}<|turn>user\n{{ messages[0].content }}<turn|>\n"
)
QUESTION = {"role": "user", "content": "Hello"}


def long(count: int) -> list[dict[str, str]]:
    return [QUESTION, {"role": "assistant", "content": "b"}] * count + [QUESTION]


def ask(live: Live, messages: list[dict[str, str]]) -> tuple[int, dict[str, Any]]:
    body = {"messages": messages, "max_tokens": 1}
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    return status, json.loads(answer)


def begin_and_leave(
    live: Live, messages: list[dict[str, str]], leave: Callable[[], object]
) -> None:
    """Ask, and close the connection when `leave` returns."""
    body = json.dumps({"messages": messages}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {LOCAL}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((LOCAL, live.port)) as connection:
        connection.sendall(head.encode() + body)
        leave()


def test_a_conversation_that_takes_long_keeps_no_short_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_lanes, "LONG_SECONDS", 10.0 * PATIENCE_S)
    with serving_script(ScriptedEngine(encode("yes") * 20), CUBIC) as live:
        assert ask(live, [QUESTION])[0] == 200
        leave = threading.Event()
        asked = (live, long(800), partial(leave.wait, PATIENCE_S))
        slow = [threading.Thread(target=begin_and_leave, args=asked) for _ in range(3)]
        for thread in slow:
            thread.start()
        time.sleep(1)
        assert ask(live, [QUESTION])[0] == 200  # before the three, of which each takes minutes
        leave.set()
        for thread in slow:
            thread.join()
        assert ask(live, [QUESTION])[0] == 200


@pytest.mark.slow
def test_a_rendering_ends_with_its_time_and_with_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_lanes, "SHORT_SECONDS", 0.05)
    monkeypatch.setattr(prompt_lanes, "LONG_SECONDS", 0.4)
    with serving_script(ScriptedEngine(encode("yes") * 20), CUBIC) as live:
        status, answer = ask(live, long(100))
        assert (status, answer["error"]["code"]) == (400, "prompt_too_slow")
        assert "takes more than 0.4 s for this conversation: " in answer["error"]["message"]
        monkeypatch.setattr(prompt_lanes, "LONG_SECONDS", 600.0)
        begin_and_leave(live, long(800), partial(time.sleep, 0.5))
        monkeypatch.setattr(prompt_lanes, "LONG_SECONDS", 0.4)
        assert ask(live, long(100))[0] == 400  # it does not wait for the one that has left
        monkeypatch.setattr(prompt_lanes, "LONG_SECONDS", 10.0 * PATIENCE_S)
        assert (
            ask(live, long(20))[0] == 200
        )  # what is too slow for a short one is built all the same
