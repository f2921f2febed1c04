"""`gemma4-serve DIR`: OpenAI's API on a native library, the chat page for a browser's, or both."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gemma4_compile.options.process import warn
from gemma4_compile.options.serve import (
    API_KEY_VARIABLE,
    COMMAND,
    ServeOptions,
    api_key,
)
from gemma4_compile.package.interface import embeds
from gemma4_compile.runtime.listening import (
    limits_of,
    listen,
    warn_of_strangers,
    wish_of,
)
from gemma4_compile.runtime.package.hub_snapshot import hub_package_of
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.prefixes.prefix_folder import forget
from gemma4_compile.runtime.prompt.prompt import NO_TEMPLATE
from gemma4_compile.runtime.protocols import api_routes
from gemma4_compile.runtime.serve_several import serve_several
from gemma4_compile.runtime.served_embedder import ServedEmbedder, load_embedder
from gemma4_compile.runtime.served_package import load_package
from gemma4_compile.runtime.server.address import address_of, take_address
from gemma4_compile.runtime.server.embeddings.endpoints import embedding_routes
from gemma4_compile.runtime.server.pages import folder_routes
from gemma4_compile.runtime.serving_page import check_files, chosen_page, served
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
    serves_page, serves_api = served(options, directory, provenance)
    if serves_page:
        check_files(options, directory, provenance)
    with take_address(options.host, options.port) as taken, ExitStack() as ending:
        warn_of_strangers(options, taken, key, is_for_browsers=not serves_api)
        if not serves_api:
            _serve_page(options, directory, taken, key)
            return
        of_hub = hub_package_of(directory)
        own_name = of_hub.name if of_hub is not None else directory.resolve().name
        name = options.model_name or own_name
        if embeds(provenance.build):
            embedder = load_embedder(options, directory, name)
            ending.callback(embedder.close)
            page = chosen_page(options, key, "the API alone") if serves_page else options.page
            _serve_embedder(options, embedder, directory if serves_page else None, page, taken, key)
            return
        loaded = load_package(options, directory, provenance, name)
        ending.callback(loaded.close)
        service = loaded.service
        limits = limits_of(options, takes_media=service.model.takes_media)
        routes = api_routes(service, limits, key)
        page = options.page
        if serves_page:
            page = chosen_page(options, key, "the API alone")
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


def _serve_embedder(
    options: ServeOptions,
    embedder: ServedEmbedder,
    of_page: Path | None,
    page: Path | None,
    taken: socket.socket,
    key: str | None,
) -> None:
    """Serve the API of an encoder, and its files to the page where it has a browser's library."""
    service = embedder.service
    routes = embedding_routes(service, limits_of(options, takes_media=False), key)
    base = f"{address_of(taken, options.host)}/v1"
    Console().note(f"embeddings of `{service.card.name}`: {base}/embeddings")
    listen(
        [*routes, *folder_routes(page, of_page)],
        taken,
        options,
        opens=of_page is not None and options.opens and page is not None,
        on_stop=service.begin_stop,
        is_alive=lambda: service.is_alive,
    )


def _serve_page(
    options: ServeOptions, directory: Path, taken: socket.socket, key: str | None
) -> None:
    """Serve a package for browsers, and the page if there is one; the page checks the files."""
    page = chosen_page(options, key, "nothing")
    routes = folder_routes(page, directory)
    opens = options.opens and page is not None
    listen(routes, taken, options, opens=opens)


if __name__ == "__main__":
    sys.exit(main())
