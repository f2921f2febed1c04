"""What requests leave behind: no memory, also where they come to nothing; no trace of a client."""

from __future__ import annotations

import gc
import json
import platform
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from gemma4_compile.runtime.server import memory
from gemma4_compile.runtime.server.memory import LONG_BYTES
from tests.child import run_within
from tests.live_server import LOCAL, PATIENCE_S, TOOL_TEMPLATE, Live, serving_script
from tests.marks import slow_unless
from tests.media_files import SETTINGS
from tests.scripted_engine import ScriptedEngine, encode

LONG = "x" * (2 << 20)
FIELDS: dict[str, dict[str, Any]] = {
    "too long": {"messages": [{"role": "user", "content": LONG}]},
    "a picture that is none": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}
                ],
            }
        ]
    },
    "a field that is ignored": {"user": LONG},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": LONG}}},
    "a wrong field": {"temperature": LONG},
    "a stream for another model": {"model": LONG, "stream": True},
}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, media=SETTINGS) as live:
        yield live


@pytest.mark.parametrize("name", slow_unless(lambda name: name in list(FIELDS)[:2], FIELDS))
def test_a_long_request_leaves_nothing(live: Live, name: str) -> None:
    question = [{"role": "user", "content": "Weather in Rome?"}]
    body = json.dumps({"messages": question, "max_tokens": 2, **FIELDS[name]}).encode()

    def ask() -> None:
        live.request("POST", "/v1/chat/completions", body, Content_Type="application/json")

    ask()
    gc.collect()
    gc.disable()  # nothing may wait for it: it may be long until it comes
    tracemalloc.start()
    try:
        for _ in range(4):
            ask()
        time.sleep(0.2)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 1 << 20


# In a process of its own: a server that a test before has asked for much gives memory back, too, a
# moment later, and may do so between the two that are measured.
FREED_BELOW = """
import os, runpy, sys
from pathlib import Path

def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

return_memory = runpy.run_path(sys.argv[1])["return_memory"]
blocks = [b"x" * 100_000 for _ in range(1000)]
blocks[:] = blocks[::100]  # so that no end of the heap is free
before = resident_bytes()
return_memory()
print(before - resident_bytes(), len(blocks))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc, which alone keeps what is freed"
)
def test_freed_memory_below_what_is_used_is_given_back() -> None:
    command = [sys.executable, "-c", FREED_BELOW, memory.__file__]
    done = run_within(PATIENCE_S, command)
    assert done.returncode == 0, done.stderr
    given_back, used = map(int, done.stdout.split())
    assert given_back > 50_000_000
    assert used == 10


def test_memory_is_given_back_after_long_requests_alone(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(1)  # for what the tests before have asked
    returned = threading.Semaphore(0)
    monkeypatch.setattr(memory, "return_memory", returned.release)
    for length, is_long in ((1000, False), (LONG_BYTES + 1, True)):
        body = json.dumps({"user": "x" * length, "messages": []}).encode()
        for _ in range(3):
            live.request("POST", "/v1/chat/completions", body, Content_Type="application/json")
        assert returned.acquire(timeout=PATIENCE_S if is_long else 1) == is_long


def test_what_another_client_asked_is_not_told_by_cached_tokens(live: Live) -> None:
    """Who brings another key, as one behind another address, is another client."""
    body = {"messages": [{"role": "user", "content": "Weather in Rome?"}], "max_tokens": 1}

    def cached(key: str) -> int:
        _, _, answer = live.request(
            "POST", "/v1/chat/completions", body, Authorization=f"Bearer {key}"
        )
        return int(json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached("one")
    assert cached("one") > 0
    assert cached("another") == 0
    assert cached("another") > 0
    assert cached("one") == 0


def test_clients_of_a_proxy_are_told_apart(live: Live) -> None:
    """All have the proxy's address, which is not taken for one that the header says."""
    body = {"messages": [{"role": "user", "content": "Weather in Bern?"}], "max_tokens": 1}

    def cached(**headers: str) -> int:
        _, _, answer = live.request("POST", "/v1/chat/completions", body, **headers)
        return int(json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached(X_Forwarded_For="192.0.2.1")
    assert cached(X_Forwarded_For="192.0.2.1") > 0
    assert cached(X_Forwarded_For="192.0.2.2") == 0
    assert cached() == 0
    assert cached(X_Forwarded_For=LOCAL) == 0


def test_nobody_goes_on_from_what_was_asked_with_another_salt(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "max_tokens": 1}

    def cached(salt: str | None) -> int:
        salted = body if salt is None else {**body, "cache_salt": salt}
        _, _, answer = live.request("POST", "/v1/chat/completions", salted)
        return int(json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached("one")
    assert cached("one") > 0
    for other in ("two", None, "one"):  # each finds the other's state, though it is the same client
        assert cached(other) == 0


def test_a_salt_is_a_text_of_some_length(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for salt in (5, "x" * 1025):
        status, _, answer = live.request(
            "POST", "/v1/chat/completions", {**body, "cache_salt": salt}
        )
        assert status == 400
        assert "cache_salt" in json.loads(answer)["error"]["message"]
