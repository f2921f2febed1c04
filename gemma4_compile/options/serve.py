"""The arguments of `gemma4-serve` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.options.chat import (
    add_check,
    add_device,
    add_draft,
    add_literal_specials,
    check_draft,
    check_positive,
    option,
)
from gemma4_compile.options.process import Options, Parser, path, run_command

API_KEY_VARIABLE = "GEMMA4_SERVE_API_KEY"
BUILD_PAGE = "npm ci && npm run build in a checkout's examples/web"
BROWSER = "webgpu"
"""Of --device: the browser's own, for which nothing is loaded here."""
BODY_MIB, MEDIA_BODY_MIB = 8, 32
_HOST = re.compile(r"[a-z0-9._-]+(:[0-9]{1,5})?")
_ALLOWED_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*(:[0-9]{1,5})?")
# Also of an extension or a program with a page inside: `app://obsidian.md`.
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\s?#@*]+)")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_LONGEST_NAME = 253  # of DNS


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-serve",
        description="Serve a compiled package: with OpenAI's API, or, compiled for webgpu, with "
        "the page that chats with it in the browser; both, where it has libraries for both.",
        epilog=f"The variable {API_KEY_VARIABLE} sets a key that requests must bring.",
    )
    parser.add_argument(
        "package",
        type=path,
        metavar="DIR_OR_ID",
        help="the package's directory, or its id on the hub: owner/name, owner/name@REVISION",
    )
    _add_address(parser.add_argument_group("address and page"))
    _add_model(parser.add_argument_group("model"))
    _add_requests(parser.add_argument_group("requests"))
    add_check(parser)
    parser.add_common()
    return parser


def _add_address(group: Options) -> None:
    group.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (%(default)s)"
    )
    group.add_argument(
        "--port", type=int, metavar="N", default=8000, help="port; 0: a free one (%(default)s)"
    )
    group.add_argument(
        "--page",
        type=path,
        metavar="FOLDER",
        help="serve this built chat page at `/` (for browsers: the one that is found)",
    )
    group.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty(),
        help="open the page in a browser (default: in a terminal)",
    )


def _add_model(group: Options) -> None:
    group.add_argument("--context-length", type=int, metavar="N", help="tokens to make room for")
    add_draft(group)
    add_device(group, f"; {BROWSER}: none, the page alone")
    group.add_argument(
        "--thinking", action="store_true", help="think before answering, unless a request sets it"
    )
    add_literal_specials(group)


def _add_requests(group: Options) -> None:
    group.add_argument(
        "--model-name", metavar="NAME", help="the model's name in requests (default: DIR's name)"
    )
    group.add_argument(
        "--strict-model",
        action="store_true",
        help="refuse requests for another name than the model's, instead of answering with a note",
    )
    group.add_argument(
        "--strict-request",
        action="store_true",
        help="refuse requests with unknown fields, instead of ignoring what cannot change a reply",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let this origin's pages use the API; may be given again",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer for this host name too, as of a container's host, a tunnel or a proxy (NAME, "
        "NAME:PORT, *.NAME; *: any name); may be given again",
    )
    group.add_argument(
        "--queue", type=int, metavar="N", default=16, help="most requests that wait (%(default)s)"
    )
    group.add_argument(
        "--max-body-mib",
        type=int,
        metavar="N",
        help=f"longest request in MiB (default: {BODY_MIB}, or {MEDIA_BODY_MIB} for packages that "
        "take pictures or sounds)",
    )
    group.add_argument(
        "--allow-media-hosts",
        default="",
        metavar="HOST[,HOST]",
        help="fetch pictures that requests name by http(s) addresses of these hosts (HOST or "
        "HOST:PORT; default: of none)",
    )


def api_key() -> str | None:
    """The key of the environment; UsageError for one that no client can bring."""
    key = os.environ.get(API_KEY_VARIABLE)
    if key is not None and (not key or key != key.strip() or any(c < " " for c in key)):
        raise UsageError(
            f"{API_KEY_VARIABLE} is empty, or holds spaces at its ends or control characters",
            hint=f"set a key, or `unset {API_KEY_VARIABLE}` to let everybody in who reaches this",
        )
    return key


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
    for given in names:
        name, colon, port = given.strip().rpartition(":") if ":" in given else (given, "", "")
        try:
            name = name.strip().lower()
            if not name.isascii():
                name = name.encode("idna").decode()
        except UnicodeError:
            name = ""
        host = f"{name if name == '*.' else name.removesuffix('.')}{colon}{port}"
        if _is_address(given.strip().strip("[]")):
            continue  # it is answered anyway
        is_name = _ALLOWED_HOST.fullmatch(host) and len(name) <= _LONGEST_NAME
        if not is_name or (port and not 1 <= int(port) <= 65_535):
            raise UsageError(
                f"--allow-host: expected a host name, found `{given}`",
                hint="a name without scheme and path: host.docker.internal, chat.example.org:8443, "
                "*.example.org for all below it, or * for any; IP addresses need none",
            )
        hosts.append(host)
    return hosts


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def allowed_origins(origins: Sequence[str]) -> list[str]:
    """The origins of --allow-origin as browsers send them; UsageError for what is none."""
    sent = []
    for given in origins:
        if given == "*":
            sent.append(given)
            continue
        found = _ORIGIN.fullmatch(given.strip().removesuffix("/"))
        if found is None:
            raise UsageError(
                f"--allow-origin: expected an origin, found `{given}`",
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


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for values that cannot be."""
    api_key()
    if not arguments.host.strip():
        raise UsageError(
            "--host is empty",
            hint="leave it out for 127.0.0.1, this machine; 0.0.0.0 lets every network in",
        )
    if arguments.page is not None and not (arguments.page / "index.html").is_file():
        raise UsageError(
            f"--page: `{arguments.page}` has no `index.html`",
            hint=f"give the folder that was built: {BUILD_PAGE}",
        )
    allowed_origins(arguments.allow_origin)
    media_hosts(arguments.allow_media_hosts)
    allowed_hosts(arguments.allow_host)
    ranges = {"port": (0, 65_535), "queue": (0, 10_000), "max_body_mib": (1, 1024)}
    for name, (lowest, highest) in ranges.items():
        value = getattr(arguments, name)
        if value is not None and not lowest <= value <= highest:
            raise UsageError(
                f"{option(name)}: expected {lowest} to {highest}, found {value}",
                hint=f"leave it out for {make_parser().get_default(name) or 'the default'}",
            )
    check_positive(arguments, "context_length", "leave it out for the package's own")
    check_draft(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)
