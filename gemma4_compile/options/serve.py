"""The options of `gemma4-serve` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.device_kinds import BROWSER
from gemma4_compile.errors import UsageError
from gemma4_compile.options import chat
from gemma4_compile.options.command import (
    Command,
    CommandOptions,
    Group,
    given,
    optional_argument,
)
from gemma4_compile.options.prefixes import (
    check_prefixes,
    parse_size,
    prefix_cache_option,
    prefix_memory_option,
)
from gemma4_compile.options.process import path

API_KEY_VARIABLE = "GEMMA4_SERVE_API_KEY"
BUILD_PAGE = "npm ci && npm run build in a checkout's examples/web"
BODY_MIB, MEDIA_BODY_MIB = 8, 32
DEFAULT_PORT, DEFAULT_QUEUE = 8000, 16
DEFAULT_IDLE_S, MOST_IDLE_S = 300, 30 * 24 * 3600
_LONGEST_MODEL_NAME = 100
LATEST = ":latest"
"""Behind a model's name in Ollama, where it says no version: clients add it, and look for it."""
MOST_DEFAULT_SLOTS, MOST_SLOTS = 4, 64
_HOST = re.compile(r"[a-z0-9._-]+(:[0-9]{1,5})?")
_ALLOWED_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*(:[0-9]{1,5})?")
# Also of an extension or a program with a page inside: `app://obsidian.md`.
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\s?#@*]+)")
_SOURCE = re.compile(rb"""<script\b[^>]*\bsrc\s*=\s*["']?[^"'>\s]+\.tsx?["'\s>]""", re.IGNORECASE)
_INDEX_BYTES = 1 << 20
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_LONGEST_NAME = 253  # of DNS
_ADDRESS, _MODEL, _REQUESTS = Group("address and page"), Group("model"), Group("requests")
_SEVERAL = Group("several packages")


def api_key() -> str | None:
    """The key of the environment; UsageError for one that no client can bring."""
    key = os.environ.get(API_KEY_VARIABLE)
    if key is not None and (not key or key != key.strip() or any(c < " " for c in key)):
        raise UsageError(
            f"{API_KEY_VARIABLE} is empty, or holds spaces at its ends or control characters",
            hint=f"set a key, or `unset {API_KEY_VARIABLE}` to let everybody in who reaches this",
        )
    return key


def named_packages(text: str) -> list[tuple[str, Path]]:
    """Name and place of a --model; UsageError for what is none."""
    name, equals, place = text.partition("=")
    name = name.strip()
    if not equals or not name or not place.strip() or len(name) > _LONGEST_MODEL_NAME:
        raise UsageError(
            f"--model: expected NAME=DIR_OR_ID, found `{text[:200]}`",
            hint=f"a name of up to {_LONGEST_MODEL_NAME} characters for requests, and where the "
            "package is: --model e2b=./e2b-cuda --model a4b=owner/name",
        )
    return [(name, path(place.strip()))]


def media_hosts(text: str) -> list[str]:
    """The hosts of an --allow-media-hosts list; UsageError for what is none."""
    hosts = [host.strip().lower() for host in text.split(",") if host.strip()]
    for host in hosts:
        port = host.partition(":")[2]
        if not _HOST.fullmatch(host) or (port and not 1 <= int(port) <= 65_535):
            raise UsageError(
                f"--allow-media-hosts: expected host names, found `{host}`",
                hint="names with commas between them, without scheme and path: "
                "images.example.org,example.com:8443",
            )
    return hosts


def allowed_hosts(names: Sequence[str]) -> list[str]:
    """The names of --allow-host as browsers send them; UsageError for what is none."""
    hosts = []
    for text in names:
        name, colon, port = text.strip().rpartition(":") if ":" in text else (text, "", "")
        try:
            name = name.strip().lower()
            if not name.isascii():
                name = name.encode("idna").decode()
        except UnicodeError:
            name = ""
        host = f"{name if name == '*.' else name.removesuffix('.')}{colon}{port}"
        if _is_address(text.strip().strip("[]")):
            continue  # it is answered anyway
        is_name = _ALLOWED_HOST.fullmatch(host) and len(name) <= _LONGEST_NAME
        if not is_name or (port and not 1 <= int(port) <= 65_535):
            raise UsageError(
                f"--allow-host: expected a host name, found `{text}`",
                hint="a name without scheme and path: host.docker.internal, chat.example.org:8443, "
                "*.example.org for all below it, or * for any; IP addresses need none",
            )
        hosts.append(host)
    return hosts


def check_page(page: Path) -> None:
    """Raise UsageError for a folder without a page, or with the sources of one."""
    index = page / "index.html"
    if not index.is_file():
        raise UsageError(
            f"--page: `{page}` has no `index.html`",
            hint=f"give the folder that was built: {BUILD_PAGE}",
        )
    with contextlib.suppress(OSError), index.open("rb") as file:
        if _SOURCE.search(file.read(_INDEX_BYTES)):
            built = page / "dist"
            raise UsageError(
                f"--page: `{page}` holds a page's sources: its `index.html` loads TypeScript, "
                "which no browser runs",
                hint=f"give what is built of it: --page {built}"
                if (built / "index.html").is_file()
                else f"build it and give its dist: {BUILD_PAGE}",
            )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def allowed_origins(origins: Sequence[str]) -> list[str]:
    """The origins of --allow-origin as browsers send them; UsageError for what is none."""
    sent = []
    for text in origins:
        if text == "*":
            sent.append(text)
            continue
        found = _ORIGIN.fullmatch(text.strip().removesuffix("/"))
        if found is None:
            raise UsageError(
                f"--allow-origin: expected an origin, found `{text}`",
                hint="scheme, host and port without a path: https://example.org, or * for every "
                "page, also of files, whose origin is `null`",
            )
        scheme, host = found[1].lower(), found[2]
        if scheme in _USUAL_PORTS:
            with contextlib.suppress(UnicodeError):
                host = host if host.isascii() else host.encode("idna").decode()
            host = host.lower().removesuffix(_USUAL_PORTS[scheme])
        sent.append(f"{scheme}://{host}")
    return sent


@dataclass(frozen=True, kw_only=True)
class ServeOptions(CommandOptions):
    """The options of `gemma4-serve`, which fit together."""

    package: Path | None = optional_argument("DIR_OR_ID", chat.PACKAGE_HELP, type=path)
    host: str = _ADDRESS.option("127.0.0.1", "--host ADDRESS", "address to listen on (%(default)s)")
    port: int = _ADDRESS.option(DEFAULT_PORT, "--port N", "port; 0: a free one (%(default)s)")
    page: Path | None = _ADDRESS.option(
        None,
        "--page FOLDER",
        "serve this built chat page at `/` (for browsers: the one that is found)",
    )
    open: bool | None = _ADDRESS.option(
        None,
        "--open",
        "open the page in a browser (default: in a terminal)",
        action=argparse.BooleanOptionalAction,
    )
    context_length: int | None = chat.context_option(_MODEL)
    draft: int | None = chat.draft_option(_MODEL)
    ple: str | None = chat.ple_option(_MODEL)
    experts: float | None = chat.experts_option(_MODEL)
    expert_cache: int | None = chat.expert_cache_option(_MODEL)
    prefix_memory: int | None = prefix_memory_option(_MODEL)
    prefix_cache: Path | None = prefix_cache_option(_MODEL)
    forget: bool = _MODEL.switch(
        "--forget",
        "remove what --prefix-cache kept: DIR is that folder then, and nothing is served",
    )
    device: str | None = chat.device_option(f"; {BROWSER}: none, the page alone", _MODEL)
    thinking: bool = _MODEL.switch("--thinking", "think before answering, unless a request sets it")
    literal_specials: bool = chat.literal_specials_switch(_MODEL)
    model_name: str | None = _REQUESTS.option(
        None, "--model-name NAME", "the model's name in requests (default: DIR's name)"
    )
    strict_model: bool = _REQUESTS.switch(
        "--strict-model",
        "refuse requests for another name than the model's, instead of answering with a note",
    )
    strict_request: bool = _REQUESTS.switch(
        "--strict-request",
        "refuse requests with unknown fields, instead of ignoring what cannot change a reply",
    )
    allow_origin: tuple[str, ...] = _REQUESTS.option(
        (),
        "--allow-origin ORIGIN",
        "let this origin's pages use the API; may be given again",
        type=lambda text: allowed_origins([text]),
        action="extend",
    )
    allow_host: tuple[str, ...] = _REQUESTS.option(
        (),
        "--allow-host NAME",
        "answer for this host name too, as of a container's host, a tunnel or a proxy (NAME, "
        "NAME:PORT, *.NAME; *: any name); may be given again",
        type=lambda text: allowed_hosts([text]),
        action="extend",
    )
    slots: int | None = _REQUESTS.option(
        None,
        "--slots N",
        "replies that are generated at the same time, each with keys and values for a whole "
        f"context (default: up to {MOST_DEFAULT_SLOTS}, as memory is left)",
    )
    queue: int = _REQUESTS.option(
        DEFAULT_QUEUE, "--queue N", "most requests that wait (%(default)s)"
    )
    max_body_mib: int | None = _REQUESTS.option(
        None,
        "--max-body-mib N",
        f"longest request in MiB (default: {BODY_MIB}, or {MEDIA_BODY_MIB} for packages that "
        "take pictures or sounds)",
    )
    allow_media_hosts: tuple[str, ...] = _REQUESTS.option(
        (),
        "--allow-media-hosts HOST[,HOST]",
        "fetch pictures that requests name by http(s) addresses of these hosts (HOST or "
        "HOST:PORT; default: of none)",
        type=media_hosts,
    )
    check: str = chat.check_option()
    models: tuple[tuple[str, Path], ...] = _SEVERAL.option(
        (),
        "--model NAME=DIR_OR_ID",
        "serve this package by this name, beside others: may be given again, in the place of "
        "DIR_OR_ID; each is loaded when it is asked for first",
        type=named_packages,
        action="extend",
    )
    memory: int | None = _SEVERAL.option(
        None,
        "--memory SIZE",
        "memory of a device that the packages of --model may take together (16GB, 8GiB; "
        "default: what is free there); those that are not used leave for one that is asked for",
        type=parse_size,
    )
    idle: int = _SEVERAL.option(
        DEFAULT_IDLE_S,
        "--idle SECONDS",
        "seconds after which a package of --model that nobody uses is unloaded (%(default)s)",
    )

    @property
    def opens(self) -> bool:
        """Whether a page is opened in a browser."""
        return sys.stdout.isatty() if self.open is None else self.open

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be."""
        self._check_packages()
        api_key()
        if not self.host.strip():
            raise UsageError(
                "--host is empty",
                hint="leave it out for 127.0.0.1, this machine; 0.0.0.0 lets every network in",
            )
        if self.page is not None:
            check_page(self.page)
        for flag, value, most, least, usual in (
            ("--port", self.port, 65_535, 0, DEFAULT_PORT),
            ("--slots", self.slots, MOST_SLOTS, 1, "as many as memory is left for"),
            ("--queue", self.queue, 10_000, 0, DEFAULT_QUEUE),
            ("--max-body-mib", self.max_body_mib, 1024, 1, "the default"),
            ("--idle", self.idle, MOST_IDLE_S, 1, DEFAULT_IDLE_S),
        ):
            if value is not None and not least <= value <= most:
                raise UsageError(
                    f"{flag}: expected {least} to {most}, found {value}",
                    hint=f"leave it out for {usual}",
                )
        chat.check_lengths(self.context_length, self.draft)
        check_prefixes(self.prefix_cache, self.prefix_memory)

    def _check_packages(self) -> None:
        """UsageError where there is no package, or where one and several do not go together."""
        if self.package is None and self.forget:
            raise UsageError(
                "--forget: no folder is given",
                hint="name it as the package is named else: gemma4-serve --forget "
                f"{self.prefix_cache or 'DIR'}",
            )
        if self.package is None and not self.models:
            raise UsageError(
                "no package is given",
                hint="give its directory or its id on the hub, or --model NAME=DIR_OR_ID for each "
                "of several",
            )
        if not self.models:
            if alone := given(self, ("memory", "idle")):
                raise UsageError(
                    f"{alone[0]} is for several packages",
                    hint="leave it out, or give each package as --model NAME=DIR_OR_ID",
                )
            return
        if self.package is not None:
            raise UsageError(
                f"both `{self.package}` and --model are given",
                hint=f"give it a name, too: --model NAME={self.package}",
            )
        if one := given(self, ("forget", "model_name", "strict_model")):
            raise UsageError(
                f"{one[0]} is for one package, and --model names several",
                hint="leave it out: with --model each request gets the model that it names",
            )
        names = [name.removesuffix(LATEST) for name, _ in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"--model: two packages have the name `{twice[0]}`", hint="name each differently"
            )
        if self.memory == 0:
            raise UsageError(
                "--memory is 0, so no package could be loaded",
                hint="leave it out for what is free on the device",
            )


COMMAND = Command(
    "gemma4-serve",
    "Serve a compiled package: with OpenAI's API, or, compiled for webgpu, with "
    "the page that chats with it in the browser; both, where it has libraries for both.",
    ServeOptions,
    epilog=f"The variable {API_KEY_VARIABLE} sets a key that requests must bring.",
    surplus="several packages have a name each: --model NAME=DIR --model NAME=DIR",
)
