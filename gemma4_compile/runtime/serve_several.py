"""`gemma4-serve --model NAME=DIR ...`: several packages behind one address."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import ServeOptions
from gemma4_compile.runtime.device.device import Device, release_pools
from gemma4_compile.runtime.embedding.settings import usual_length
from gemma4_compile.runtime.engine.slot_room import loaded_bytes
from gemma4_compile.runtime.listening import limits_of, listen, warn_of_strangers, wish_of
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.package.room import asks_for_room, free_memory
from gemma4_compile.runtime.prefixes.prefix_folder import check_folder, model_folder
from gemma4_compile.runtime.served_embedder import load_embedder
from gemma4_compile.runtime.served_package import load_package
from gemma4_compile.runtime.server.address import address_of, take_address
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.memory import return_memory
from gemma4_compile.runtime.server.models.offered import LoadedModel, OfferedModel
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.models.routes import model_routes, models_health
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.pages import PACKAGE_PATH, find_page, folders_routes
from gemma4_compile.runtime.serving_page import check_files, chosen_page, served
from gemma4_compile.runtime.terminal.console import Console


def serve_several(options: ServeOptions, key: str | None) -> None:
    """Serve the packages of --model, each loaded when it is asked for."""
    if options.prefix_cache is not None:
        check_folder(options.prefix_cache, make=True)
    found = {name: _found(options, name, given) for name, given in options.models}
    offered = {name: one for name, one in found.items() if isinstance(one, _Offered)}
    of_pages = {name: one.directory for name, one in found.items() if one.serves_page}
    store = ResponseStore()
    takes_media = any("vision" in one.model.card.capabilities for one in offered.values())
    limits = limits_of(options, takes_media=takes_media)

    def load(model: OfferedModel, most_bytes: int | None) -> LoadedModel:
        one = offered[model.card.name]
        provenance = read_provenance(one.directory)
        if model.card.embeds:
            own = replace(options, context_length=model.card.context_length)
            embedder = load_embedder(own, one.directory, model.card.name)
            embedder.answer(limits, key)
            return embedder
        own = options
        if options.prefix_cache is not None:  # a folder is one package's
            own = replace(options, prefix_cache=model_folder(options.prefix_cache, model.card.name))
        loaded = load_package(own, one.directory, provenance, model.card.name, most_bytes)
        loaded.answer(limits, key, store)
        return loaded

    def free(model: OfferedModel) -> int | None:
        return None if not asks_for_room() else free_memory(offered[model.card.name].device)

    with take_address(options.host, options.port) as taken:
        warn_of_strangers(options, taken, key, is_for_browsers=not offered)
        page = options.page
        if of_pages:
            guarded = "the API alone" if offered else "nothing"
            page = chosen_page(options, key, guarded, f"{PACKAGE_PATH}NAME/")
        pages = folders_routes(page, of_pages) if of_pages or page is not None else []
        opens = bool(of_pages) and options.opens and page is not None
        if not offered:
            listen(pages, taken, options, opens=opens)
            return
        pool = ModelPool(
            [one.model for one in offered.values()],
            load,
            memory=options.memory,
            free=free,
            idle_s=options.idle,
            queue=options.queue,
            release=_release,
        )
        base = f"{address_of(taken, options.host)}/v1"
        names = ", ".join(f"`{name}`" for name in offered)
        Console().note(f"OpenAI's API for models {names}, loaded when they are asked for: {base}")
        strict = options.strict_request
        routes = model_routes(pool, limits, key, store, strict_request=strict)
        try:
            health = models_health(pool, key)
            listen(
                [*routes, *pages],
                taken,
                options,
                opens=opens,
                on_stop=pool.begin_stop,
                health=health,
            )
        finally:
            pool.close()


def _release() -> None:
    release_pools()
    return_memory()


@dataclass(frozen=True)
class _Offered:
    """A package of --model, described but not loaded."""

    directory: Path
    serves_page: bool
    device: Device
    model: OfferedModel


@dataclass(frozen=True)
class _OfPages:
    """A package of --model that answers in browsers alone."""

    directory: Path
    serves_page: bool = True


def _found(options: ServeOptions, name: str, given: Path) -> _Offered | _OfPages:
    """Describe a package; Gemma4CompileError where it is none, or runs neither here nor there."""
    pages = (options.page or find_page()) is not None
    wish = wish_of(options, pages=pages)
    directory = Console().locate(given, drafts=options.draft, pages=pages, wish=wish)
    serves_page = False
    if pages:
        provenance = read_provenance(directory)
        serves_page, serves_api = served(options, directory, provenance)
        if serves_page:
            check_files(options, directory, provenance)
            if not serves_api:
                Console().note(f"`{name}` answers in the page alone")
                return _OfPages(directory)
    return _offered(options, name, directory, serves_page=serves_page)


def _offered(options: ServeOptions, name: str, directory: Path, *, serves_page: bool) -> _Offered:
    console, wish = Console(), wish_of(options, pages=False)
    package = Package.open(directory, check=Check.OFF, drafter=wish.drafter, device=options.device)
    for notice in package.notices:
        console.note(notice)
    compiled = package.chat_config.context_window_size
    length = options.context_length or usual_length(package.chat_config)
    if package.embeds:  # the option is meant for replies
        length = min(length, compiled)
    if length > compiled:
        raise UsageError(
            f"--context-length: `{name}` was compiled for {compiled} tokens, found {length}",
            hint="give at most that, or compile the package with a larger --context",
        )
    device = Device.open(package.device)
    nbytes = loaded_bytes(package, device, wish, wish.placement)
    card = ModelCard.of_package(package, name, length)
    return _Offered(directory, serves_page, device, OfferedModel(card, device.describe(), nbytes))
