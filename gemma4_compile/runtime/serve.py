"""`gemma4-serve DIR`: OpenAI's API on a native library, the chat page for a browser's, or both."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.options.process import warn
from gemma4_compile.options.serve import (
    API_KEY_VARIABLE,
    BUILD_PAGE,
    COMMAND,
    ServeOptions,
    api_key,
)
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.listening import (
    WAY_WITHOUT_KEY,
    limits_of,
    listen,
    warn_of_strangers,
    wish_of,
)
from gemma4_compile.runtime.package.choice import candidates, for_pages, is_for_browsers
from gemma4_compile.runtime.package.drafter_files import without_drafter
from gemma4_compile.runtime.package.hub_snapshot import forgetting_damage, hub_package_of
from gemma4_compile.runtime.package.integrity import Check, check_sizes
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.prefixes.prefix_folder import forget
from gemma4_compile.runtime.prompt.prompt import NO_TEMPLATE
from gemma4_compile.runtime.protocols import api_routes
from gemma4_compile.runtime.serve_several import serve_several
from gemma4_compile.runtime.served_package import load_package
from gemma4_compile.runtime.server.address import address_of, take_address
from gemma4_compile.runtime.server.pages import PACKAGE_PATH, find_page, folder_routes
from gemma4_compile.runtime.terminal.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    return COMMAND.main(run, argv)


def run(options: ServeOptions) -> None:
    """Serve until interrupted."""
    if options.forget:
        assert options.package is not None, "one folder"
        removed = forget(options.package)
        Console().note(f"{removed} files of prefixes removed from `{options.package}`")
        return
    key = api_key()
    os.environ.pop(API_KEY_VARIABLE, None)  # so that no process started from here has it
    if options.models:
        serve_several(options, key)
    else:
        assert options.package is not None, "one or several"
        _serve_one(options, options.package, key)


def _serve_one(options: ServeOptions, given: Path, key: str | None) -> None:
    wish = wish_of(options, pages=True)
    directory = Console().locate(given, drafts=options.draft, wish=wish)
    provenance = read_provenance(directory)
    serves_page, serves_api = _served(options, directory, provenance)
    if serves_page and Check(options.check) is not Check.OFF:
        wanted = provenance if options.draft != 0 else without_drafter(provenance)
        with forgetting_damage(directory):
            check_sizes(directory, for_pages(wanted))  # page hashes what it loads
    with take_address(options.host, options.port) as taken, ExitStack() as ending:
        warn_of_strangers(options, taken, key, is_for_browsers=not serves_api)
        if not serves_api:
            _serve_page(options, directory, taken, key)
            return
        of_hub = hub_package_of(directory)
        own_name = of_hub.name if of_hub is not None else directory.resolve().name
        served = load_package(options, directory, provenance, options.model_name or own_name)
        ending.callback(served.close)
        service = served.service
        limits = limits_of(options, takes_media=service.model.takes_media)
        routes = api_routes(service, limits, key)
        page = options.page
        if serves_page:
            page = _find_page(options, key, "the API alone")
        routes += folder_routes(page, directory if serves_page else None)
        stop = service.worker.begin_stop
        base = f"{address_of(taken, options.host)}/v1"
        Console().note(f"OpenAI's API for model `{service.model.name}`: {base}")
        if service.model.template is None:
            warn(NO_TEMPLATE, f"ask {base}/completions; {base}/chat/completions answers 400")
        listen(
            routes,
            taken,
            options,
            opens=serves_page and options.opens and page is not None,
            on_stop=stop,
            is_alive=lambda: service.worker.is_alive,
        )


def _served(options: ServeOptions, directory: Path, provenance: Provenance) -> tuple[bool, bool]:
    """Whether the package is served to pages, and whether it answers here.

    One with libraries for both does both, but for `--device webgpu`, or where none of the native
    ones runs.
    """
    named = options.device
    pages = [one for one in provenance.libraries if is_for_browsers(one)]
    of_pages = [one.name for one in pages]
    if pages and named is not None and (is_of_pages(named) or named in of_pages):
        return True, False
    if not pages or named is not None:
        return bool(pages), True
    lacking = []
    for one in candidates(directory, provenance):
        if one.device is not None:
            return True, True
        lacking.append(f"`{one.library.name}` does not run here, so there is no API: {one.lacks}")
    for notice in lacking:
        Console().note(notice)
    return True, False


def _serve_page(
    options: ServeOptions, directory: Path, taken: socket.socket, key: str | None
) -> None:
    """Serve a package for browsers, and the page if there is one; the page checks the files."""
    page = _find_page(options, key, "nothing")
    routes = folder_routes(page, directory)
    opens = options.opens and page is not None
    listen(routes, taken, options, opens=opens)


def _find_page(options: ServeOptions, key: str | None, guarded: str) -> Path | None:
    """The page for a package for browsers; tells where there is none, and what no key guards."""
    if key is not None:
        warn(
            f"{API_KEY_VARIABLE} guards {guarded} here: whoever reaches this server gets the "
            "package, for a page's requests for its files bring no key",
            f"{WAY_WITHOUT_KEY}, or listen on 127.0.0.1",
        )
    page = options.page or find_page()
    if page is None:
        warn(
            f"no built page here, so only the package is served, at {PACKAGE_PATH}",
            f"{BUILD_PAGE}, then --page its dist",
        )
    return page


if __name__ == "__main__":
    sys.exit(main())
