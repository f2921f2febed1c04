"""Two CPU replicas of `tiny` behind one address; `make ray` runs it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# Ray gives its own processes five seconds to start: a busy machine needs more.
PATIENT = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
os.environ.update(PATIENT)  # before Ray reads them
sys.path.insert(0, str(HERE))

from replica import Replica, passed_on  # noqa: E402

SYSTEM = "You are a calculator that answers in one sentence. " * 8


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "tiny"
    command = [sys.executable, "-m", "gemma4_compile", "tiny", "--target", "cpu", "--quant", "f32"]
    subprocess.run([*command, "-o", str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def address(package: Path) -> Iterator[str]:
    import ray
    from gemma4_ray import Settings, build
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {"env_vars": {"PYTHONPATH": str(HERE), **PATIENT}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=paths)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(Settings(package=str(package), gpus=0, fewest=2, most=2)), name="gemma4")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def ask(address: str, text: object, *, system: str = SYSTEM, **fields: object) -> Any:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    body = json.dumps({"messages": messages, "temperature": 0, **fields}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = response.read().decode()
    return answer if fields.get("stream") else json.loads(answer)


def servers(package: Path) -> list[int]:
    """Processes of gemma4-serve that serve this package."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            entry.name.isdigit()
            and b"run_serve" in b" ".join(words)
            and str(package).encode() in words
        ):
            found.append(int(entry.name))
    return found


def test_a_beginning_is_read_once(address: str) -> None:
    first, second = (ask(address, f"What is 8 plus {n}?") for n in (19, 20))
    texts = [one["choices"][0]["message"]["content"] for one in (first, second)]
    assert texts == ["8 plus 19 is 27.", "8 plus 20 is 28."]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, second)]
    assert cached[0] == 0
    assert cached[1] > 100


def test_a_stream_comes_whole(address: str) -> None:
    stream = ask(address, "What is 8 plus 19?", stream=True)
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == "8 plus 19 is 27."
    assert len(deltas) > 5


def test_an_error_is_the_server_s_own(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(address, None)
    assert caught.value.code == 400
    assert "messages[1].content" in caught.value.read().decode()


def test_many_clients_are_answered_by_both(address: str, package: Path) -> None:
    assert len(servers(package)) == 2
    with ThreadPoolExecutor(8) as clients:
        asked = [f"What is {n} plus 4?" for n in range(8)]
        answers = list(
            clients.map(
                lambda pair: ask(address, pair[1], system=f"{pair[0]}. {SYSTEM}"), enumerate(asked)
            )
        )
    assert all(one["choices"][0]["finish_reason"] in ("stop", "length") for one in answers)


def test_a_replica_that_ends_is_replaced(address: str, package: Path) -> None:
    before = servers(package)
    os.kill(before[0], 9)
    deadline = time.monotonic() + 300
    while len(set(servers(package)) - {before[0]}) < 2:
        assert time.monotonic() < deadline, "no server took its place"
        time.sleep(1)
    assert (
        ask(address, "What is 8 plus 19?")["choices"][0]["message"]["content"] == "8 plus 19 is 27."
    )


def test_a_package_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with \d+ before it answered"):
        asyncio.run(Replica(tmp_path / "none").start())


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end it")
def test_a_server_ends_with_its_replica(package: Path) -> None:
    """Also where that is killed, and cannot end anything itself."""
    code = (
        "import asyncio, sys; from pathlib import Path; from replica import Replica\n"
        "async def run(one):\n"
        "    await one.start()\n"
        "    print(one.address, flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(run(Replica(Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, str(package)]
    before = set(servers(package))
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, encoding="utf-8") as replica:
        assert replica.stdout is not None
        assert replica.stdout.readline().startswith("http://")
        own = set(servers(package)) - before
        assert len(own) == 1
        replica.kill()
        replica.wait()
    deadline = time.monotonic() + 300
    while own & set(servers(package)):
        assert time.monotonic() < deadline, "it serves on"
        time.sleep(0.2)


def test_headers_of_a_connection_end_with_it() -> None:
    sent = {"Host": "here", "Connection": "close, X-Hop", "X-Hop": "1", "Authorization": "Bearer a"}
    assert passed_on(sent) == {"authorization": "Bearer a"}


def test_what_comes_is_passed_on_as_it_is() -> None:
    """A body in its own encoding, and a redirect: the page has both."""
    text = b"<title>the page</title>" * 100
    packed = gzip.compress(text)
    asked: list[bytes] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if b" /moved " in head:
            writer.write(b"HTTP/1.1 307 Moved\r\nLocation: ?package=/package/\r\n")
            writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(packed) + packed)
        await writer.drain()
        writer.close()

    async def ask_both() -> list[list[Any]]:
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
        replica = Replica(Path("none"))
        replica.listen_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            packs = {"accept-encoding": "gzip"}
            page = [part async for part in replica.answer("GET", "/", packs, b"")]
            return [page, [part async for part in replica.answer("GET", "/moved", {}, b"")]]
        finally:
            await replica.stop()
            server.close()

    page, moved = asyncio.run(ask_both())
    assert page[0] == (200, {"content-encoding": "gzip"})
    assert gzip.decompress(b"".join(page[1:])) == text
    assert moved == [(307, {"location": "?package=/package/"})]
    assert b"accept-encoding" in asked[0].lower()
    assert b"accept-encoding" not in asked[1].lower()
