"""A hub of one repository on this machine, which counts the bytes of the files that it gave out."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_api

from tests.fake_hub import COMMIT

MODEL = "someone/model"
SMALL_BYTES = 1000  # files of so many are not cut off


@dataclass
class HubServer:
    """What it has and did.

    Attributes
    ----------
    files : their content by name; a number is the size of a file that must not be read
    refusal : a status and message that every request is answered with
    sent : bytes of content
    commit : what every revision names
    sizes : what is listed of files that are of another size
    hashes : SHA-256 that are listed of large files
    drops : downloads that end after a third of what is left
    """

    files: dict[str, bytes | int]
    address: str = ""
    refusal: tuple[int, str] | None = None
    sent: int = 0
    asked: list[str] = field(default_factory=list)
    commit: str = COMMIT
    sizes: dict[str, int] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    drops: int = 0

    def use(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        """Let huggingface_hub ask this one in this process, with another cache."""
        patch.setattr(constants, "ENDPOINT", self.address)
        url = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{self.address}{url[1]}{url[2]}")
        patch.setattr(hf_api.api, "endpoint", self.address)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        patch.setenv("HF_TOKEN", "hf_secret")

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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        server.shutdown()


def _size(content: bytes | int) -> int:
    return content if isinstance(content, int) else len(content)


def _entry(hub: HubServer, file: str) -> dict[str, object]:
    size = hub.sizes.get(file, _size(hub.files[file]))
    entry: dict[str, object] = {"type": "file", "path": file, "size": size, "oid": file}
    if file in hub.hashes:
        entry["lfs"] = {"oid": hub.hashes[file], "size": size, "pointerSize": 130}
    return entry


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
            headers = {"X-Repo-Commit": hub.commit, "Accept-Ranges": "bytes"}
            status, content = 200, hub.files.get(name, 0)
            if hub.refusal is not None:
                status, content = hub.refusal[0], 0
                headers["X-Error-Message"] = hub.refusal[1]
            elif path.startswith("/api/"):
                content = json.dumps([_entry(hub, file) for file in hub.files]).encode()
                headers["Content-Type"] = "application/json"
            elif name in hub.files:
                headers["ETag"] = f'"{hashlib.sha256(f"{name}{content!r}".encode()).hexdigest()}"'
            else:
                status = 404
                headers["X-Error-Code"] = "EntryNotFound"
            begin = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].rstrip("-"))
            if begin and status == 200:
                status, size = 206, _size(content)
                headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(_size(content) - begin))
            self.end_headers()
            if not is_head and status in (200, 206):
                data = content[begin:] if isinstance(content, bytes) else bytes(content - begin)
                if hub.drops and name and len(data) > SMALL_BYTES:
                    hub.drops -= 1
                    data = data[: len(data) // 3]
                    self.close_connection = True
                self.wfile.write(data)
                hub.sent += 0 if path.startswith("/api/") else len(data)

    return Handler
