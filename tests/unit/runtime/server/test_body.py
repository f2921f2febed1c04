from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

import pytest
from starlette.requests import ClientDisconnect

from gemma4_compile.runtime.server import body as body_module
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import (
    BodyReader,
    Limits,
    beside_in_turn,
    parse_json,
)
from tests.live_server import QUESTION, TOOL_TEMPLATE, serving_script
from tests.scripted_engine import ScriptedEngine


def test_text_is_taken_as_it_is() -> None:
    assert parse_json('{"a": "ü\\ud83d\\ude42 \\\\ud800"}'.encode()) == {"a": "ü🙂 \\ud800"}
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'[["x\\uDFFF"]]',
        b'{"a": "\\ude42\\ud83d"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b"\xff",
        b"NaN",
        b"[1e400, -Infinity]",
        b"",
        b"[" * 100_000,
        b"1" * 5_000,
    ],
)
def test_what_is_no_json_or_no_unicode_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is not JSON") as raised:
        parse_json(body)
    assert raised.value.status == 400
    assert len(raised.value.message) < 300


class Arriving:
    """A request of 8 MiB that comes to no good end."""

    headers: ClassVar = {"content-type": "application/json"}

    def __init__(self, end: str) -> None:
        self.end = end

    async def stream(self) -> AsyncIterator[bytes]:
        for _ in range(2048 if self.end == "is too long" else 128):
            yield bytes(1 << 16)
        if self.end == "stops":
            await asyncio.sleep(60)
        raise ClientDisconnect


@pytest.mark.parametrize("end", ["leaves", "stops", "is too long"])
def test_a_body_that_comes_to_nothing_leaves_nothing(end: str) -> None:
    limits = Limits(body_bytes=16 << 20, body_seconds=0.5)
    reader = BodyReader(limits, 1 << 20, 1024, media=True)

    async def read() -> list[BaseException]:
        errors: list[BaseException] = []
        for _ in range(4):
            try:
                await reader.read(cast(Any, Arriving(end)))
            except (ApiError, ClientDisconnect) as error:
                errors.append(error)
        return errors

    gc.disable()  # whose time may be long in coming
    tracemalloc.start()
    try:
        assert len(asyncio.run(read())) == 4
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
        gc.enable()


FORM = "application/x-www-form-urlencoded"  # as `curl -d` has it
OLD_FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
POWERSHELL = "Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.22621.4391"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # litellm's requests to Ollama's API
        ({"Content_Type": ""}, 200),
        ({"Content_Type": FORM}, 200),
        ({"Sec_Fetch_Mode": "cors", "User_Agent": "node"}, 200),  # Node's fetch of bytes
        ({"Content_Type": FORM, "User_Agent": POWERSHELL}, 200),  # Invoke-RestMethod -Body
        ({"Content_Type": FORM, "User_Agent": OLD_FIREFOX}, 415),  # without a referrer
        ({"Origin": "null"}, 415),
        ({"Content_Type": FORM, "Origin": "https://a.example"}, 415),
        ({"Content_Type": FORM, "Referer": "https://a.example/"}, 415),
        ({"Sec_Fetch_Site": "cross-site"}, 415),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=a"}, 415),
    ],
)
def test_a_body_without_json_s_type_is_taken_from_programs_alone(
    headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"messages": QUESTION}).encode()
    with serving_script(ScriptedEngine([500]), TOOL_TEMPLATE) as live:
        assert live.request("POST", "/v1/chat/completions", body, **headers)[0] == status


def test_half_of_a_character_is_shown_with_what_stands_before_it() -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(b'{"a": "fine \\ud83d\\ude00", "b": "it ends so: \\ud83d"}')
    assert "half of a character, `\\ud83d` after" in caught.value.message
    assert "it ends so: `" in caught.value.message


class Asking:
    """A request with a body."""

    headers: ClassVar = {"content-type": "application/json"}

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def stream(self) -> AsyncIterator[bytes]:
        yield self.body


def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered meanwhile: here parsing waits until one is."""
    answered = threading.Event()

    def parse(body: bytes) -> object:
        assert answered.wait(10), "nobody is answered while a body is parsed"
        return parse_json(body)

    monkeypatch.setattr(body_module, "parse_json", parse)
    text = "a" * (1 << 17)

    async def read() -> object:
        reader = BodyReader(Limits(), 1 << 20, 4096)
        reading = asyncio.ensure_future(reader.read(cast("Any", Asking(json.dumps(text).encode()))))
        while not reading.done():
            await asyncio.sleep(0.01)
            answered.set()
        return reading.result()

    assert asyncio.run(read()) == text


@pytest.mark.parametrize("count", [10, 20_000])
def test_long_bodies_are_parsed_as_short_ones(count: int) -> None:
    value = [{"a": i, "b": [i / 7, -i, 1e300, None, True, "🙂"]} for i in range(count)]
    assert parse_json(json.dumps(value).encode()) == value  # with escapes of two halves
    for wrong in (b"NaN", b'"\\ud800"', b"1" * 5000, b"{"):
        with pytest.raises(ApiError, match="not JSON"):
            parse_json(b"[" + b"1," * (count * 20) + wrong + b"]")


def test_a_turn_lasts_as_long_as_the_work_of_a_client_that_has_left() -> None:
    """Else any number of threads would work at a time, for those who come and go."""
    running, may_end = threading.Event(), threading.Event()

    def work() -> bool:
        running.set()
        return may_end.wait(20)

    def refuse() -> None:
        raise ApiError(400, "no")

    async def body() -> None:
        turns = asyncio.Semaphore(1)
        asking = asyncio.ensure_future(beside_in_turn(turns, work))
        assert await asyncio.to_thread(running.wait, 20)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert turns.locked(), "it still works"
        may_end.set()
        assert await beside_in_turn(turns, lambda: 2) == 2
        with pytest.raises(ApiError, match="no"):
            await beside_in_turn(turns, refuse)
        assert not turns.locked()

    asyncio.run(body())
