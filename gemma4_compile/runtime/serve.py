"""`gemma4-serve DIR`: OpenAI's API on a native library, the chat page for a browser's, or both."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.routing import BaseRoute

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.media.inputs import check_modality
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.options.process import warn
from gemma4_compile.options.serve import (
    API_KEY_VARIABLE,
    BODY_MIB,
    BUILD_PAGE,
    COMMAND,
    MEDIA_BODY_MIB,
    ServeOptions,
    api_key,
)
from gemma4_compile.package.artifacts import Provenance, digest
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slot_room import default_slots
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.package.choice import candidates, for_pages, is_for_browsers
from gemma4_compile.runtime.package.drafter_files import without_drafter
from gemma4_compile.runtime.package.hub_snapshot import forgetting_damage, hub_package_of
from gemma4_compile.runtime.package.integrity import Check, check_sizes
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.package.room import Placement, Wish
from gemma4_compile.runtime.prefixes.kept import PrefixCache, kept_prefixes, prefix_memory
from gemma4_compile.runtime.prefixes.prefix_folder import check_folder, forget
from gemma4_compile.runtime.prompt.prompt import NO_TEMPLATE
from gemma4_compile.runtime.protocols import api_routes
from gemma4_compile.runtime.server.address import address_of, is_loopback, take_address
from gemma4_compile.runtime.server.app import create_app
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.connections import connections_for, server_config
from gemma4_compile.runtime.server.host_names import EVERY_NAME, HostNames
from gemma4_compile.runtime.server.pages import PACKAGE_PATH, find_page, folder_routes
from gemma4_compile.runtime.server.service import Model, Service
from gemma4_compile.runtime.server.worker import Worker
from gemma4_compile.runtime.terminal.console import Console

_WAY_WITHOUT_KEY = "put a proxy that asks for a password in front"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    return COMMAND.main(run, argv)


def run(options: ServeOptions) -> None:
    """Serve until interrupted."""
    if options.forget:
        removed = forget(options.package)
        Console().note(f"{removed} files of prefixes removed from `{options.package}`")
        return
    key = api_key()
    os.environ.pop(API_KEY_VARIABLE, None)  # so that no process started from here has it
    wish = Wish(
        options.device,
        options.context_length,
        options.draft != 0,
        Placement(options.ple, options.experts),
        pages=True,
        sequences=options.slots or 1,
    )
    package = Console().locate(options.package, drafts=options.draft, wish=wish)
    options = replace(options, package=package)
    provenance = read_provenance(options.package)
    serves_page, serves_api = _served(options, provenance)
    if serves_page and Check(options.check) is not Check.OFF:
        wanted = provenance if options.draft != 0 else without_drafter(provenance)
        with forgetting_damage(options.package):
            check_sizes(options.package, for_pages(wanted))  # page hashes what it loads
    with take_address(options.host, options.port) as taken, ExitStack() as ending:
        _warn_of_strangers(options, taken, key, is_for_browsers=not serves_api)
        if not serves_api:
            _serve_page(options, taken, key)
            return
        service = _load(options, provenance, ending)
        mib = options.max_body_mib or (MEDIA_BODY_MIB if service.model.takes_media else BODY_MIB)
        limits = Limits(body_bytes=mib * 2**20)
        routes = api_routes(service, limits, key)
        page = options.page
        if serves_page:
            page = _find_page(options, key, "the API alone")
        routes += folder_routes(page, options.package if serves_page else None)
        stop = service.worker.begin_stop
        base = f"{address_of(taken, options.host)}/v1"
        Console().note(f"OpenAI's API for model `{service.model.name}`: {base}")
        if service.model.template is None:
            warn(NO_TEMPLATE, f"ask {base}/completions; {base}/chat/completions answers 400")
        try:
            listen(
                routes,
                taken,
                options,
                opens=serves_page and options.opens and page is not None,
                on_stop=stop,
                is_alive=lambda: service.worker.is_alive,
            )
        finally:
            service.worker.stop()


def _served(options: ServeOptions, provenance: Provenance) -> tuple[bool, bool]:
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
    for one in candidates(options.package, provenance):
        if one.device is not None:
            return True, True
        lacking.append(f"`{one.library.name}` does not run here, so there is no API: {one.lacks}")
    for notice in lacking:
        Console().note(notice)
    return True, False


def _load(options: ServeOptions, provenance: Provenance, ending: ExitStack) -> Service:
    """Load what answers; what is to be done when it has stopped is put into `ending`."""
    console = Console()
    if options.prefix_cache is not None:
        check_folder(options.prefix_cache, make=True)  # before the package is loaded
    package = console.open(
        options.package,
        Check(options.check),
        drafts=options.draft,
        device=options.device,
    )
    if options.allow_media_hosts:
        check_modality("image", package.modalities)
    of_hub = hub_package_of(options.package)
    own_name = of_hub.name if of_hub is not None else options.package.resolve().name
    name = options.model_name or own_name
    model = Model.of(package, name, options.context_length)

    def load() -> Slots:
        slots = options.slots
        if slots is None:
            placement = Placement(options.ple, options.experts)
            slots = default_slots(package, options.context_length, options.draft != 0, placement)
        with console.loading(options.package, package.library_name) as progress:
            engine = Engine(
                package,
                context_length=options.context_length,
                progress=progress,
                drafts=options.draft,
                ple=options.ple,
                experts=options.experts,
                sequences=slots,
            )
        if engine.experts.on_host:
            console.note(engine.experts.describe())
        taken.append(engine.media)
        cache = None
        if options.prefix_cache is not None:
            hashes = {name: listed[1] for name, listed in provenance.files.items()}
            cache = PrefixCache(options.prefix_cache, digest([hashes, package.library_name]))
        kept = kept_prefixes(engine, prefix_memory(options.prefix_memory), cache)
        if kept is not None:
            ending.callback(kept.close)

        def generator(one: TokenEngine) -> Generator:
            assert isinstance(one, SequenceEngine), "of this engine's sequences"
            beginnings = None if kept is None else kept.of(one)
            return Generator(one, model.tokenizer, package.stop_token_ids, engine.media, beginnings)

        if cache is not None and kept is None:
            why = "this package's library has no functions for it: compile the package again"
            console.note(f"--prefix-cache: nothing is kept in `{cache.path}`: {why}")
        counted = None if kept is None else kept.counts
        return Slots(EngineSequences(engine), generator, counted)

    taken: list[MediaSettings] = []  # known once the library is loaded
    worker = Worker(load, options.queue)
    worker.start()
    return Service(
        replace(model, media=taken[0]),
        worker,
        thinking=options.thinking,
        literal_specials=options.literal_specials,
        strict_model=options.strict_model,
        strict_request=options.strict_request,
        media_hosts=options.allow_media_hosts,
    )


def _serve_page(options: ServeOptions, taken: socket.socket, key: str | None) -> None:
    """Serve a package for browsers, and the page if there is one; the page checks the files."""
    page = _find_page(options, key, "nothing")
    routes = folder_routes(page, options.package)
    opens = options.opens and page is not None
    listen(routes, taken, options, opens=opens)


def _find_page(options: ServeOptions, key: str | None, guarded: str) -> Path | None:
    """The page for a package for browsers; tells where there is none, and what no key guards."""
    if key is not None:
        warn(
            f"{API_KEY_VARIABLE} guards {guarded} here: whoever reaches this server gets the "
            "package, for a page's requests for its files bring no key",
            f"{_WAY_WITHOUT_KEY}, or listen on 127.0.0.1",
        )
    page = options.page or find_page()
    if page is None:
        warn(
            f"no built page here, so only the package is served, at {PACKAGE_PATH}",
            f"{BUILD_PAGE}, then --page its dist",
        )
    return page


def _warn_of_strangers(
    options: ServeOptions, taken: socket.socket, key: str | None, *, is_for_browsers: bool
) -> None:
    if key is not None:
        return
    can = "read the package" if is_for_browsers else "use this server and read its replies"
    lacks = "" if is_for_browsers else ", and there is no key"
    way = _WAY_WITHOUT_KEY if is_for_browsers else f"set the variable {API_KEY_VARIABLE}"
    if EVERY_NAME in options.allow_host:
        warn(
            f"every website that a browser near here opens can {can}: "
            f"--allow-host {EVERY_NAME} answers for any name{lacks}",
            f"name the hosts, or {way}",
        )
    if not is_loopback(taken):
        warn(
            f"everybody who reaches {options.host} can "
            + ("read the package" if is_for_browsers else "use this server: there is no key"),
            f"{way}, or listen on 127.0.0.1. It answers for its IP "
            "addresses; for other names with --allow-host NAME, since a name can be a website's",
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
    options: ServeOptions,
    *,
    opens: bool = False,
    on_stop: Callable[[], None] = lambda: None,
    is_alive: Callable[[], bool] = lambda: True,
) -> None:
    """Serve until interrupted; prints the address on stdout.

    Parameters
    ----------
    taken : listens on the options' host
    opens : open the address in the user's browser, too
    on_stop : called in the event loop when the server begins to stop
    is_alive : what `/health` reports
    """
    hosts = HostNames.of(options.host, options.allow_host)
    app = create_app(routes, hosts=hosts, origins=options.allow_origin, is_alive=is_alive)
    limits, lacking = connections_for(options.queue)
    if lacking:
        warn(
            f"this system lets a process open too few files: {limits.connections} connections are "
            f"served, {lacking} fewer than --queue {options.queue} needs",
            "let it open more (`ulimit -n`), or choose a shorter --queue",
        )
    config = server_config(app, limits, options.allow_origin, log_level="warning")
    address = address_of(taken, options.host)
    print(address, flush=True)
    if opens:
        webbrowser.open(address)
    _Server(config, on_stop).run([taken])


if __name__ == "__main__":
    sys.exit(main())
