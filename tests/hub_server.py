"""A hub of one repository on this machine, which counts the bytes of the files that it gave out."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fake_hub import COMMIT

MODEL = "someone/model"


@dataclass
class HubServer:
    """What it has and did.

    Attributes
    ----------
    files : their content by name; a number is the size of a file that must not be read
    refusal : a status and message that every request is answered with
    sent : bytes of content
    """

    files: dict[str, bytes | int]
    address: str = ""
    refusal: tuple[int, str] | None = None
    sent: int = 0
    asked: list[str] = field(default_factory=list)

    def environment(self, home: str) -> dict[str, str]:
        """Variables that let huggingface_hub ask this one, with a cache in `home`."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": home,
            "HF_TOKEN": "hf_secret",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


@contextmanager
def serve(files: Mapping[str, bytes | int]) -> Iterator[HubServer]:
    """Serve a repository on a port of its own."""
    hub = HubServer(dict(files))
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()


def _size(content: bytes | int) -> int:
    return content if isinstance(content, int) else len(content)


def _handler(hub: HubServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(is_head=True)

        def do_GET(self) -> None:
            self.answer(is_head=False)

        def answer(self, *, is_head: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path}")
            name = path.partition("/resolve/")[2].partition("/")[2]
            headers = {"X-Repo-Commit": COMMIT}
            status, content = 200, hub.files.get(name, 0)
            if hub.refusal is not None:
                status, content = hub.refusal[0], 0
                headers["X-Error-Message"] = hub.refusal[1]
            elif path.startswith("/api/"):
                listed = [
                    {"type": "file", "path": file, "size": _size(each), "oid": file}
                    for file, each in hub.files.items()
                ]
                content = json.dumps(listed).encode()
                headers["Content-Type"] = "application/json"
            elif name in hub.files:
                headers["ETag"] = f'"{hashlib.sha256(f"{name}{content!r}".encode()).hexdigest()}"'
            else:
                status = 404
                headers["X-Error-Code"] = "EntryNotFound"
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(_size(content)))
            self.end_headers()
            if not is_head and status == 200:
                data = content if isinstance(content, bytes) else bytes(content)
                self.wfile.write(data)
                hub.sent += 0 if path.startswith("/api/") else len(data)

    return Handler
