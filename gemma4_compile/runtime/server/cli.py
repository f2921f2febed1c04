"""`gemma4-serve DIR`: OpenAI's API on a native package, or the chat page with one for browsers."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.routing import BaseRoute

from gemma4_compile.errors import UsageError
from gemma4_compile.process import Parser, run_command, warn
from gemma4_compile.runtime.console import Console
from gemma4_compile.runtime.engine import Engine
from gemma4_compile.runtime.generation import Generator
from gemma4_compile.runtime.integrity import Check
from gemma4_compile.runtime.package import Package, read_provenance
from gemma4_compile.runtime.server.address import address_of, is_loopback, take_address
from gemma4_compile.runtime.server.api import api_routes
from gemma4_compile.runtime.server.app import create_app
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.connections import ConnectionLimits, server_config
from gemma4_compile.runtime.server.pages import PACKAGE_PATH, find_page, folder_routes
from gemma4_compile.runtime.server.service import Model, Service
from gemma4_compile.runtime.server.worker import Worker

API_KEY_VARIABLE = "GEMMA4_SERVE_API_KEY"
_BROWSER_SUFFIX = ".wasm"  # of a library that runs in a page, not here
_BUILD_PAGE = "npm ci && npm run build in a checkout's examples/web"
_ORIGIN = re.compile(r"\*|https?://[^/\s?#]+")  # as browsers send it, or all of them


def _parser() -> Parser:
    parser = Parser(
        prog="gemma4-serve",
        description="Serve a compiled package: with OpenAI's API, or, compiled for webgpu, with "
        "the page that chats with it in the browser.",
        epilog=f"The variable {API_KEY_VARIABLE} sets a key that requests must bring.",
    )
    parser.add_argument("package", type=Path, metavar="DIR", help="the package's directory")
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", default=8000, help="port; 0: a free one (%(default)s)"
    )
    parser.add_argument(
        "--model-name", metavar="NAME", help="the model's name in requests (default: DIR's name)"
    )
    parser.add_argument(
        "--strict-model",
        action="store_true",
        help="refuse requests for another name than the model's, instead of answering with a note",
    )
    parser.add_argument("--context-length", type=int, metavar="N", help="tokens to make room for")
    parser.add_argument(
        "--thinking", action="store_true", help="think before answering, unless a request says"
    )
    parser.add_argument(
        "--literal-specials",
        action="store_true",
        help="take control tokens that a message spells out, such as <|turn>, as text",
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FOLDER",
        help="serve this built chat page at `/` (for browsers: the one that is found)",
    )
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty(),
        help="open the page in a browser (default: in a terminal)",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let this origin's pages use the API; may be given again",
    )
    parser.add_argument(
        "--queue", type=int, metavar="N", default=16, help="most requests that wait (%(default)s)"
    )
    parser.add_argument(
        "--max-body-mib",
        type=int,
        metavar="N",
        default=8,
        help="longest request in MiB (%(default)s)",
    )
    parser.add_argument(
        "--check",
        choices=[check.value for check in Check],
        default=Check.ONCE.value,
        help="hash the package's files and compare: once and whenever one changed, always, or "
        "not at all (default: %(default)s)",
    )
    parser.add_common()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    return run_command(_parser(), _serve, argv)


def _serve(arguments: argparse.Namespace) -> None:
    _check(arguments)
    provenance = read_provenance(arguments.package)
    with take_address(arguments.host, arguments.port) as taken:
        if (provenance.library or "").endswith(_BROWSER_SUFFIX):
            _serve_page(arguments, taken)
            return
        service = _load(arguments)
        limits = Limits(body_bytes=arguments.max_body_mib * 2**20)
        routes = api_routes(service, limits, _api_key())
        routes += folder_routes(arguments.page, None)
        stop = service.worker.begin_stop
        base = f"{address_of(taken, arguments.host)}/v1"
        Console().note(f"OpenAI's API for model `{service.model.name}`: {base}")
        try:
            listen(
                routes,
                taken,
                arguments.host,
                arguments.allow_origin,
                on_stop=stop,
                is_alive=lambda: service.worker.is_alive,
            )
        finally:
            service.worker.stop()


def _load(arguments: argparse.Namespace) -> Service:
    console = Console()
    with console.checking(arguments.package) as progress:
        package = Package.open(arguments.package, check=Check(arguments.check), progress=progress)
    name = arguments.model_name or arguments.package.resolve().name
    model = Model.of(package, name, arguments.context_length)

    def load() -> Generator:
        with console.loading(arguments.package, package.target) as progress:
            engine = Engine(package, context_length=arguments.context_length, progress=progress)
        return Generator(engine, model.tokenizer, package.stop_token_ids)

    worker = Worker(load, arguments.queue)
    worker.start()
    return Service(
        model,
        worker,
        thinking=arguments.thinking,
        literal_specials=arguments.literal_specials,
        strict_model=arguments.strict_model,
    )


def _serve_page(arguments: argparse.Namespace, taken: socket.socket) -> None:
    """Serve a package for browsers, and the page if there is one; the page checks the files."""
    page = arguments.page or find_page()
    if page is None:
        warn(
            f"no built page here, so only the package is served, at {PACKAGE_PATH}",
            f"{_BUILD_PAGE}, then --page its dist",
        )
    routes = folder_routes(page, arguments.package)
    opens = arguments.open and page is not None
    listen(routes, taken, arguments.host, arguments.allow_origin, opens=opens)


def _api_key() -> str | None:
    """The key of the environment; UsageError for one that no client can bring."""
    key = os.environ.get(API_KEY_VARIABLE)
    if key is not None and (not key or key != key.strip() or any(c < " " for c in key)):
        raise UsageError(
            f"{API_KEY_VARIABLE} is empty, or holds spaces at its ends or control characters",
            hint=f"set a key, or `unset {API_KEY_VARIABLE}` to let everybody in who reaches this",
        )
    return key


def _check(arguments: argparse.Namespace) -> None:
    key = _api_key()
    if not is_loopback(arguments.host) and key is None:
        warn(
            f"everybody who reaches {arguments.host} can use this server: there is no key",
            f"set the variable {API_KEY_VARIABLE}, or listen on 127.0.0.1",
        )
    if arguments.page is not None and not (arguments.page / "index.html").is_file():
        raise UsageError(
            f"--page: `{arguments.page}` has no `index.html`",
            hint=f"give the folder that was built: {_BUILD_PAGE}",
        )
    for origin in arguments.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"--allow-origin: expected an origin, found `{origin}`",
                hint="scheme, host and port without a path: https://example.org",
            )
    ranges = {"port": (0, 65_535), "queue": (0, 10_000), "max_body_mib": (1, 1024)}
    for name, (lowest, highest) in ranges.items():
        value = getattr(arguments, name)
        if not lowest <= value <= highest:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option}: expected {lowest} to {highest}, found {value}",
                hint=f"leave it out for {_parser().get_default(name)}",
            )


class _Server(uvicorn.Server):
    """Tells when it begins to stop, so that nothing keeps its connections open."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)


def listen(
    routes: Sequence[BaseRoute],
    taken: socket.socket,
    host: str,
    origins: Sequence[str],
    *,
    opens: bool = False,
    on_stop: Callable[[], None] = lambda: None,
    is_alive: Callable[[], bool] = lambda: True,
) -> None:
    """Serve until interrupted; prints the address on stdout.

    Parameters
    ----------
    taken : listens on `host`
    opens : open the address in the user's browser, too
    on_stop : called in the event loop when the server begins to stop
    is_alive : what `/health` says
    """
    hosts = ["localhost", "127.0.0.1", "::1", host] if is_loopback(host) else None
    app = create_app(routes, hosts=hosts, origins=origins, is_alive=is_alive)
    config = server_config(app, ConnectionLimits(), log_level="warning")
    address = address_of(taken, host)
    print(address, flush=True)
    if opens:
        webbrowser.open(address)
    _Server(config, on_stop).run([taken])


if __name__ == "__main__":
    sys.exit(main())
