"""Paths of requests that are one of ours but for what a client's or a proxy's settings add."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol, runtime_checkable

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

_API = re.compile(r"/(?:v1|api)(?=/)")
_MOST_STARTS = 8  # of a path that says `/v1` again and again, each as long as the rest of it
_SLASHES = re.compile(r"/{2,}")
# A base address that is the one of chats, of Open WebUI's or LM Studio's API, or of a deployment.
_BASES = re.compile(
    r".*(?:/chat/completions|/api(?:/v[0-9])?|/openai(?:/deployments/[^/]+)?)(?=/)"
    r"|.*(?=/chat/completions$)"
)
# These say why they are not.
_UNSERVED = frozenset({"/v1/messages/batches", "/v1/responses/compact"})


@runtime_checkable
class Folder(Protocol):
    """Files below a place."""

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder of this path."""


class PathMender:
    """Takes `//v1/models`, `/v1/models/`, `/v1/v1/models`, `/llm/v1/models` and `/models` as meant.

    Base addresses end with a slash, lack `/v1` or are those of chats, and proxies leave the place
    that they have. What is a path of its own, as a page's files are, stays.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        """Know the paths of `routes` that are the API's, up to their parameters."""
        self._app = app
        paths = [route.path.partition("{") for route in routes if isinstance(route, Route)]
        self._paths = {path for path, mark, _ in paths if not mark and _API.match(path)}
        self._above = tuple({path for path, mark, _ in paths if mark and _API.match(path)})
        mounts: list[tuple[str, object]] = [
            (route.path, route.app) for route in routes if isinstance(route, Mount)
        ]
        self._folders = [(path, app) for path, app in mounts if isinstance(app, Folder)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, its path mended."""
        if scope["type"] == "http" and scope["path"] not in self._paths:
            path = self._meant(scope["path"])
            if path is not None and not self._is_of_folder(scope["path"]):
                scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)

    def _meant(self, path: str) -> str | None:
        """The path of ours that another one must be."""
        path = _SLASHES.sub("/", path)
        path = path.removesuffix("/")
        starts = [found.start() for found in islice(_API.finditer(path), _MOST_STARTS)]
        ends = [path[at:] for at in starts] + ["/v1" + path]
        if base := _BASES.match(path):
            ends.append("/v1" + path[base.end() :])
        return next(
            (end for end in ends if end in self._paths or end.startswith(self._above)), None
        )

    def _is_of_folder(self, path: str) -> bool:
        """Return whether a folder has this path: a page may have `models/` of its own."""
        return any(
            path.startswith(f"{place}/") and folder.has(path[len(place) :])
            for place, folder in self._folders
        )


def methods_of(routes: Iterable[BaseRoute]) -> Mapping[str, set[str]]:
    """The methods that the API's paths take, which a page's folder hides."""
    found: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, Route) and _API.match(route.path):
            found.setdefault(route.path, set()).update(route.methods or ())
    return found


def where_the_api_is(routes: Iterable[BaseRoute]) -> str:
    """The API's paths, for who asks for another one."""
    paths = [route.path for route in routes if isinstance(route, Route)]
    shown = [path for path in paths if path.startswith("/v1/") and "{" not in path]
    shown = [path for path in shown if path not in _UNSERVED]
    return f"; served are {', '.join(shown)} and Ollama's /api" if shown else ""
