"""Folders of files next to the API: the chat page and the package that it loads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from gemma4_compile import abi
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.server.model_list import (
    MODELS_FILE,
    model_entry,
    model_list,
    names_of_page,
)
from gemma4_compile.types import JsonObject

PACKAGE_PATH = "/package/"
MODULE_PATH = "/gemma4-web/"
# docs/web.md gives the reason for each of them.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
        "style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
        "connect-src 'self' blob: data: https: http://localhost:* http://127.0.0.1:*; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# A package is a stranger's data: whatever is in it, a browser runs nothing of it in this origin.
PACKAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
}
# Where clients look that were made for the hub: WebLLM puts this after every address of a model.
HUB_PATH = "resolve/main/"
_TYPES = {".json": "application/json", ".wasm": "application/wasm"}
_ANY_TYPE = "application/octet-stream"
# Not as the machine's own table has it: browsers refuse scripts and service workers of other types.
_PAGE_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    **_TYPES,
}
# The build puts a hash of the contents into these files' names.
HASHED = "assets/"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
# Weights do not get smaller, and a range is one of the file's own bytes.
_INCOMPRESSIBLE = (".bin", ".png")
_COMPRESSION_LEVEL = 5
# RFC 9110, 14.1.2: offsets of a first and a last byte, the last one or both of a file's end.
_BYTE_RANGE = re.compile(r"(?P<first>\d{1,18})-(?P<last>\d{1,18})?|-\d{1,18}", re.ASCII)

_NOT_PLAIN = re.compile(r"[^\w.-]+", re.ASCII)

_INSTALLED = Path(__file__).parents[2] / "page"
_CHECKOUT = Path(__file__).parents[3] / "examples" / "web" / "dist"
_INSTALLED_MODULE = Path(__file__).parents[2] / "gemma4_web"
_BUILT_MODULE = Path(__file__).parents[3] / "web" / "dist"


def folder_routes(page: Path | None, package: Path | None) -> list[BaseRoute]:
    """Routes of the folders; they follow the API's, and the page takes what is left.

    Parameters
    ----------
    page : a built chat page, served at `/`, or None; with neither, `/` shows that this is an API
    package : a package, whose listed files are served at `/package/` and at
        `/package/resolve/main/`, or None; the page opens it by itself.
        Next to it `/gemma4-web/fast.js` is the module for pages of one's own, where it is built

    Raises
    ------
    ArtifactError
        If `package` is none.
    """
    if page is None and package is None:
        return [Route("/", _api_only, methods=["GET"])]
    routes: list[BaseRoute] = []
    if package is not None:
        provenance = read_provenance(package)
        routes += _package_routes(PACKAGE_PATH, package, provenance)
        routes += _beside_packages(model_list(package, provenance, PACKAGE_PATH))
    return [*routes, *_page_routes(page, opens_package=package is not None)]


def folders_routes(page: Path | None, packages: Mapping[str, Path]) -> list[BaseRoute]:
    """Routes of several packages by their names, otherwise as `folder_routes`.

    Each is served below `/package/`; the page lists them, and opens none by itself.
    """
    routes: list[BaseRoute] = []
    models = []
    places = zip(packages.values(), names_of_page(packages), _paths(packages), strict=True)
    for package, name, path in places:
        provenance = read_provenance(package)
        routes += _package_routes(path, package, provenance)
        entry = model_entry(package, provenance, path)
        if entry is not None:
            models.append(entry | {"name": name})
    offer: JsonObject = {"models": models}
    return [*routes, *_beside_packages(offer), *_page_routes(page, opens_package=False)]


def _paths(names: Iterable[str]) -> list[str]:
    """Where the packages of these names lie: each in a place of its own, the same at any start."""
    found: list[str] = []
    for name in names:
        plain = _NOT_PLAIN.sub("-", name).strip("-.") or "model"
        path, count = f"{PACKAGE_PATH}{plain}/", 1
        while path in found:
            count += 1
            path = f"{PACKAGE_PATH}{plain}-{count}/"
        found.append(path)
    return found


def _package_routes(path: str, package: Path, provenance: Provenance) -> list[BaseRoute]:
    listed = {abi.PROVENANCE_FILE, *provenance.files}
    files = _Compressed(_PackageFiles(directory=package, listed=frozenset(listed)))
    return [Mount(place.rstrip("/"), files) for place in (path + HUB_PATH, path)]


def _beside_packages(models: JsonObject) -> list[BaseRoute]:
    """The list of models, and the module for pages of one's own."""
    offer = JSONResponse(models, headers=HEADERS)
    routes: list[BaseRoute] = [
        Route(f"/{MODELS_FILE}", lambda _request: offer, methods=["GET"]),
    ]
    if (module := find_module()) is not None:
        files = _PageFiles(directory=module, opens_package=False)
        routes.append(Mount(MODULE_PATH.rstrip("/"), _Compressed(files)))
    return routes


def _page_routes(page: Path | None, *, opens_package: bool) -> list[BaseRoute]:
    if page is None:
        return []
    return [Mount("/", _Compressed(_PageFiles(directory=page, opens_package=opens_package)))]


async def _api_only(_request: Request) -> Response:
    """Page that a browser shows at `/` where none is served."""
    return PlainTextResponse(
        "gemma4-serve: this is OpenAI's API on one model, at /v1 (its name: GET /v1/models).\n"
        "For a chat page here, start it with --page FOLDER.\n"
    )


def find_page() -> Path | None:
    """Return the built page: the one that is installed, or the checkout's; None: there is none."""
    return next((path for path in (_INSTALLED, _CHECKOUT) if (path / "index.html").is_file()), None)


def find_module() -> Path | None:
    """Return built gemma4-web: the installed one, or the checkout's; None: there is none."""
    folders = (_INSTALLED_MODULE, _BUILT_MODULE)
    return next((path for path in folders if (path / "fast.js").is_file()), None)


class _FilesWithHeaders(StaticFiles):
    """Files that are sent with headers of ours."""

    def headers_of(self, file: Path, path: str) -> Mapping[str, str]:
        """Headers of a file, whose address below this place is `path`."""
        raise NotImplementedError

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        headers = MutableHeaders(raw=response.raw_headers)
        path = self.get_path(scope).replace(os.sep, "/")
        for name, value in self.headers_of(Path(full_path), path).items():
            headers[name] = value
        return response


class _PageFiles(_FilesWithHeaders):
    """The page's files; their path decides how long a browser may keep them."""

    def __init__(self, *, directory: Path, opens_package: bool) -> None:
        super().__init__(directory=directory, html=True)
        self._opens_package = opens_package

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Send the bare page on to the page with the package."""
        if self._opens_package and path == "." and not scope["query_string"]:
            return RedirectResponse(f"?package={PACKAGE_PATH}")
        return await super().get_response(path, scope)

    def headers_of(self, file: Path, path: str) -> Mapping[str, str]:
        """As the page's headers are; files named by their contents are kept for good."""
        known = _PAGE_TYPES.get(file.suffix)
        return {
            **HEADERS,
            **({"Content-Type": known} if known else {}),
            "Cache-Control": FOR_EVER if path.startswith(HASHED) else ASK_AGAIN,
        }


class _PackageFiles(_FilesWithHeaders):
    """The files that a package lists, as data."""

    def __init__(self, *, directory: Path, listed: frozenset[str]) -> None:
        super().__init__(directory=directory)
        self._listed = listed

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Refuse what the package does not list."""
        if path not in self._listed:
            raise HTTPException(404)
        return await super().get_response(path, scope)

    def headers_of(self, file: Path, path: str) -> Mapping[str, str]:
        """As data, by the file's type."""
        content_type = _TYPES.get(file.suffix, _ANY_TYPE)
        return {**PACKAGE_HEADERS, "Content-Type": content_type, "Cache-Control": ASK_AGAIN}


class _Compressed:
    """Compresses what gets smaller, for clients that understand it and want the whole file."""

    def __init__(self, files: StaticFiles) -> None:
        self._files = files
        self._compressing = GZipMiddleware(files, compresslevel=_COMPRESSION_LEVEL)

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder of this path."""
        try:
            return self._files.lookup_path(path.strip("/"))[1] is not None
        except (OSError, ValueError):  # too long, or with a zero byte
            return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._files(scope, receive, send)
            return
        asked = Headers(scope=scope).getlist("range")
        if asked and not (len(asked) == 1 and _is_range_set(asked[0])):
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != b"range"]}
            asked = []
        files = self._files if asked or scope["path"].endswith(_INCOMPRESSIBLE) else None
        await (files or self._compressing)(scope, receive, send)


def _is_range_set(value: str) -> bool:
    """Whether a `Range` header has a meaning; RFC 9110, 14.2 lets a server ignore any other."""
    unit, _, listed = value.partition("=")
    if unit.strip().lower() != "bytes":
        return False
    found = [_BYTE_RANGE.fullmatch(each.strip()) for each in listed.split(",") if each.strip()]
    return bool(found) and all(
        each is not None and (not each["last"] or int(each["first"]) <= int(each["last"]))
        for each in found
    )
