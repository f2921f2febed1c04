"""Bodies with a `Content-Encoding`: read as if they had none, a bomb in bounded memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import BodyReader, Limits
from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode


def blocks(content: bytes) -> bytes:
    """Deflate without zlib's head, as some clients understand its name."""
    form = zlib.compressobj(9, zlib.DEFLATED, -15)
    return form.compress(content) + form.flush()


PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "in capitals": (" GZip ", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate, stored": ("deflate", lambda content: zlib.compress(content, 0)),
    "deflate without a head": ("deflate", blocks),
    "identity": ("identity", lambda content: content),
}


class Packed:
    """A request whose body comes in pieces."""

    def __init__(self, coding: str, body: bytes, piece: int = 7) -> None:
        self.headers = {"content-type": "application/json", "content-encoding": coding}
        self._pieces = [body[at : at + piece] for at in range(0, len(body), piece)]

    async def stream(self) -> AsyncIterator[bytes]:
        yield b""
        for piece in self._pieces:
            yield piece


def read(request: Packed, limits: Limits | None = None) -> object:
    reader = BodyReader(limits or Limits(), 1 << 20, 1024, media=True)
    return asyncio.run(reader.read(cast(Any, request)))


def refusal(request: Packed, limits: Limits | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(request, limits)
    return caught.value


@pytest.mark.parametrize("how", PACKED)
def test_a_packed_body_is_the_same_as_a_plain_one(how: str) -> None:
    value = {"text": "é" * 50_000, "list": list(range(1000))}
    coding, pack = PACKED[how]
    assert read(Packed(coding, pack(json.dumps(value).encode()), 97)) == value
    assert read(Packed(coding, pack(b"[1]"), 1)) == [1]


@pytest.mark.parametrize("length", [(1 << 14) - 2, (1 << 14) - 1, 1 << 14, 1 << 16, (1 << 16) + 1])
def test_no_byte_is_lost_where_slices_end(length: int) -> None:
    text = json.dumps("a" * (length - 2)).encode()
    assert len(text) == length
    assert read(Packed("gzip", gzip.compress(text), 1 << 16)) == json.loads(text)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (gzip.compress(b"[1]")[:-1], "it ends before its last block"),
        (b"", "it ends before its last block"),
        (gzip.compress(b"[1]") + b"\0", "there is more behind its end"),
        (gzip.compress(b"[1]") + gzip.compress(b"[2]"), "there is more behind its end"),
        (b"[1]", "incorrect header check"),
        (gzip.compress(b"[1]")[:-8] + bytes(8), "incorrect data check"),
    ],
)
@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_a_damaged_body_is_refused(body: bytes, why: str, piece: int) -> None:
    error = refusal(Packed("gzip", body, piece))
    assert (error.status, error.code) == (400, "invalid_body")
    assert error.message.startswith("the body cannot be unpacked as `gzip`: ")
    assert why in error.message


@pytest.mark.parametrize("coding", ["zstd", "br", "gzip, gzip", "x" * 100])
def test_other_codings_are_refused(coding: str) -> None:
    error = refusal(Packed(coding, b"[1]"))
    assert error.status == 415
    assert f"packed by `{coding[:40]}`; expected gzip, deflate" in error.message


def bomb(length: int) -> bytes:
    form = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(form.compress(bytes(1 << 20)) for _ in range(length >> 20)), form.flush()])


def test_a_bomb_is_refused_in_bounded_memory() -> None:
    limits, request = Limits(body_bytes=1 << 20), Packed("gzip", bomb(256 << 20), 1 << 18)
    tracemalloc.start()
    try:
        error = refusal(request, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (error.status, error.code) == (413, "body_too_large")
    assert peak < 4 << 20


def test_the_limit_is_that_of_what_is_unpacked() -> None:
    most = 100_000
    limits = Limits(body_bytes=most)
    for length, fits in ((most, True), (most + 1, False)):
        request = Packed("gzip", gzip.compress(json.dumps("a" * (length - 2)).encode()))
        if fits:
            assert read(request, limits) == "a" * (length - 2)
        else:
            assert refusal(request, limits).status == 413


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("Sunny.")), TOOL_TEMPLATE) as live:
        yield live


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_the_server_answers_a_packed_request(live: Live, how: str) -> None:
    coding, pack = PACKED[how]
    body = pack(json.dumps({"messages": QUESTION}).encode())
    headers = {"Content_Encoding": coding, "Content_Type": "application/json"}
    status, _, answer = live.request("POST", "/v1/chat/completions", body, **headers)
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Sunny."
    assert live.request("POST", "/v1/chat/completions", body[:-4], **headers)[0] == 400
