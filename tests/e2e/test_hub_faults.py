"""A hub whose connections drop: an error that says so, or the whole file; never half a package."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from tests import models
from tests.packages import Silent

ROOT = Path(__file__).parents[2]
MODEL = "someone/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MOST_RUNS = 8
SLOW_S = 3.0


class Hub(ThreadingHTTPServer):
    """One model. The first `drops` downloads of its weights end after a part of the bytes.

    The first `slow` answers come after SLOW_S.
    """

    daemon_threads = True

    def __init__(self, folder: Path, drops: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.drops = folder, drops
        self.dropped = self.slow = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        if self.server.slow:
            self.server.slow -= 1
            time.sleep(SLOW_S)
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{MODEL}"):
            files = sorted(self.server.folder.iterdir())
            info: Any = {
                "id": MODEL,
                "sha": COMMIT,
                "siblings": [{"rfilename": file.name} for file in files],
            }
            if "/tree/" in path:
                info = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": f.name}
                    for f in files
                ]
            self.send(json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
            return
        found = re.fullmatch(rf"/{MODEL}/resolve/[^/]+/([\w.\-]+)", path)
        file = self.server.folder / found[1] if found else None
        if file is None or not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = file.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        self.send(data, headers, body, drops=file.name == "model.safetensors")

    def send(
        self, data: bytes, headers: dict[str, str], body: bool, *, drops: bool = False
    ) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        for name, value in {**headers, "Accept-Ranges": "bytes"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if not body:
            return
        if drops and self.server.dropped < self.server.drops:
            self.server.dropped += 1
            self.wfile.write(data[begin : begin + (len(data) - begin) // 3])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(data[begin:])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    model = models.write_checkpoint(tmp_path / "hub", models.E2B_LIKE, dtype="bfloat16").path
    with Hub(model, drops=7) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(
    address: str, cache: Path, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run gemma4-compile on the model of a hub at this address."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "gemma4_compile", MODEL, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_hub_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = run(f"http://127.0.0.1:{port}", tmp_path, "--plan")
    first, second = done.stderr.splitlines()  # no word of trying again, which takes half a minute
    assert done.returncode == 1
    assert first.startswith(f"error: `{MODEL}` is not in the local cache and the hub cannot be re")
    assert second.startswith("hint: ")


@pytest.mark.slow
def test_a_hub_that_is_slow_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.slow = 2
    done = run(hub.address, tmp_path / "cache", "--plan", HF_HUB_ETAG_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert hub.slow == 0
    assert done.stdout.startswith(f"{MODEL} in ")


@pytest.mark.slow
def test_connections_that_drop(hub: Hub, tmp_path: Path) -> None:
    output = tmp_path / "work" / "out"
    options = ["--target", "cpu", "--quant", "q4f16", "--only", "weights", "-o", str(output)]
    for _ in range(MOST_RUNS):
        done = run(hub.address, tmp_path / "cache", *options)
        if done.returncode == 0:
            break
        assert done.returncode == 1, done.stderr
        assert f"error: downloading `{MODEL}`" in done.stderr, done.stderr
        assert "hint: run the same command again" in done.stderr
        assert not output.parent.exists() or not list(output.parent.iterdir())
    assert done.returncode == 0, done.stderr
    assert hub.dropped == hub.drops, "the weights must have been cut off as often as planned"

    compile_model(
        CompileRequest(str(hub.folder), "cpu", "q4f16", tmp_path / "direct", only="weights"),
        Silent(),
    )
    for file in (tmp_path / "direct").iterdir():
        if file.name != "provenance.json":  # it says where the weights came from
            assert (output / file.name).read_bytes() == file.read_bytes(), file.name
