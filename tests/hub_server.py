"""A hub of one repository on this machine, which counts the bytes of the files that it gave out."""

from __future__ import annotations

import base64
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
    stored : large files that were uploaded, by SHA-256
    failures : uploads of large files that are refused
    created : what it was asked to make repositories with
    commits : added and deleted names of every commit
    elsewhere : the commit that somebody else makes while the next large file is uploaded
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
    stored: dict[str, bytes] = field(default_factory=dict)
    failures: int = 0
    created: list[dict[str, object]] = field(default_factory=list)
    commits: list[tuple[list[str], list[str]]] = field(default_factory=list)
    elsewhere: str | None = None

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

        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"POST {path}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if hub.refusal is not None:
                self.tell({"error": hub.refusal[1]}, hub.refusal[0])
                return
            if _is_late(hub, path, body):
                self.tell({"error": "A commit has happened since."}, 412)
                return
            self.tell(_posted(hub, path, body))

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.asked.append(f"PUT {self.path}")
            if hub.failures:
                hub.failures -= 1
                self.tell({}, 400)
                return
            hub.stored[hashlib.sha256(body).hexdigest()] = body
            hub.commit, hub.elsewhere = hub.elsewhere or hub.commit, None
            self.tell({})

        def tell(self, values: object, status: int = 200) -> None:
            content = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def answer(self, *, is_head: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path}")
            name = path.partition("/resolve/")[2].partition("/")[2]
            headers = {"X-Repo-Commit": hub.commit, "Accept-Ranges": "bytes"}
            status, content = 200, hub.files.get(name, 0)
            if hub.refusal is not None:
                status, content = hub.refusal[0], 0
                headers["X-Error-Message"] = hub.refusal[1]
            elif path == f"/api/models/{MODEL}":
                content = json.dumps({"id": MODEL, "sha": hub.commit}).encode()
                headers["Content-Type"] = "application/json"
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


def _is_late(hub: HubServer, path: str, body: bytes) -> bool:
    """Whether it is a commit on another one than the last."""
    if not path.endswith("/commit/main"):
        return False
    header = next(json.loads(line) for line in body.splitlines())
    return header["value"].get("parentCommit", hub.commit) != hub.commit


def _posted(hub: HubServer, path: str, body: bytes) -> dict[str, object]:
    """The answer to a step of an upload."""
    if path.endswith("/commit/main"):
        lines = [json.loads(line) for line in body.splitlines()]
        gone = [one["value"]["path"] for one in lines if one["key"] == "deletedFile"]
        for name in gone:
            del hub.files[name]
        added = [one["value"] for one in lines if one["key"] in ("file", "lfsFile")]
        for one in added:
            large = one.get("oid")
            content = hub.stored[large] if large else base64.b64decode(one["content"])
            hub.files[one["path"]] = content
        hub.commits.append(([one["path"] for one in added], gone))
        hub.commit = hashlib.sha1(body).hexdigest()
        return {"commitUrl": f"{hub.address}/{MODEL}/commit/{hub.commit}", "commitOid": hub.commit}
    values = json.loads(body)
    if path == "/api/repos/create":
        hub.created.append(values)
        return {"url": f"{hub.address}/{MODEL}"}
    if "/preupload/" in path:
        names = [one["path"] for one in values["files"]]
        modes = {name: "lfs" if name.endswith((".bin", ".so")) else "regular" for name in names}
        return {
            "files": [
                {"path": name, "uploadMode": mode, "shouldIgnore": False}
                for name, mode in modes.items()
            ]
        }
    if path.endswith("/info/lfs/objects/batch"):
        objects = [_action(hub, one) for one in values["objects"]]
        return {"transfer": "basic", "objects": objects}
    return {"warnings": [], "errors": []}  # of metadata that is looked at


def _action(hub: HubServer, one: dict[str, object]) -> dict[str, object]:
    upload = {"upload": {"href": f"{hub.address}/put/{one['oid']}"}}
    return {**one, **({} if one["oid"] in hub.stored else {"actions": upload})}
