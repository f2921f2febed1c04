"""`gemma4-serve --model NAME=DIR ...`: several packages behind one address."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import ServeOptions
from gemma4_compile.runtime.device.device import Device, release_pools
from gemma4_compile.runtime.engine.slot_room import loaded_bytes
from gemma4_compile.runtime.listening import limits_of, listen, warn_of_strangers, wish_of
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.package.room import asks_for_room, free_memory
from gemma4_compile.runtime.prefixes.prefix_folder import check_folder, model_folder
from gemma4_compile.runtime.served_package import load_package
from gemma4_compile.runtime.server.address import address_of, take_address
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.memory import return_memory
from gemma4_compile.runtime.server.models.offered import LoadedModel, OfferedModel
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.models.routes import model_routes, models_health
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.terminal.console import Console


def serve_several(options: ServeOptions, key: str | None) -> None:
    """Serve the packages of --model, each loaded when it is asked for."""
    if options.prefix_cache is not None:
        check_folder(options.prefix_cache, make=True)
    offered = {name: _offered(options, name, given) for name, given in options.models}
    store = ResponseStore()
    takes_media = any("vision" in one.model.card.capabilities for one in offered.values())
    limits = limits_of(options, takes_media=takes_media)

    def load(model: OfferedModel, most_bytes: int | None) -> LoadedModel:
        one = offered[model.card.name]
        provenance = read_provenance(one.directory)
        own = options
        if options.prefix_cache is not None:  # a folder is one package's
            own = replace(options, prefix_cache=model_folder(options.prefix_cache, model.card.name))
        served = load_package(own, one.directory, provenance, model.card.name, most_bytes)
        served.answer(limits, key, store)
        return served

    def free(model: OfferedModel) -> int | None:
        return None if not asks_for_room() else free_memory(offered[model.card.name].device)

    with take_address(options.host, options.port) as taken:
        warn_of_strangers(options, taken, key, is_for_browsers=False)
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
            listen(routes, taken, options, on_stop=pool.begin_stop, health=health)
        finally:
            pool.close()


def _release() -> None:
    release_pools()
    return_memory()


@dataclass(frozen=True)
class _Offered:
    """A package of --model, described but not loaded."""

    directory: Path
    device: Device
    model: OfferedModel


def _offered(options: ServeOptions, name: str, given: Path) -> _Offered:
    """Describe a package; Gemma4CompileError where it is none, or does not run here."""
    console, wish = Console(), wish_of(options, pages=False)
    directory = console.locate(given, drafts=options.draft, pages=False, wish=wish)
    package = Package.open(directory, check=Check.OFF, drafter=wish.drafter, device=options.device)
    for notice in package.notices:
        console.note(notice)
    compiled = package.chat_config.context_window_size
    length = options.context_length or compiled
    if length > compiled:
        raise UsageError(
            f"--context-length: `{name}` was compiled for {compiled} tokens, found {length}",
            hint="give at most that, or compile the package with a larger --context",
        )
    device = Device.open(package.device)
    nbytes = loaded_bytes(package, device, wish, wish.placement)
    card = ModelCard.of_package(package, name, length)
    return _Offered(directory, device, OfferedModel(card, device.describe(), nbytes))
