"""A package that `gemma4-serve` has loaded: its worker, its service, and what ends with them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from starlette.routing import Router
from starlette.types import ASGIApp

from gemma4_compile.media.inputs import check_modality
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.options.serve import ServeOptions
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slot_room import default_slots, loaded_bytes
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.room import Placement, Wish
from gemma4_compile.runtime.prefixes.kept import (
    PrefixCache,
    kept_prefixes,
    nothing_kept,
    prefix_memory,
)
from gemma4_compile.runtime.prefixes.prefix_folder import check_free
from gemma4_compile.runtime.prefixes.shelf import HostShelf
from gemma4_compile.runtime.protocols import api_routes
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.service import Model, Service
from gemma4_compile.runtime.server.worker import Worker, WorkerState
from gemma4_compile.runtime.terminal.console import Console


class ServedPackage:
    """A loaded package.

    Attributes
    ----------
    service : of its worker
    nbytes : of the device's memory, as its plan says; 0 where an old package does not
    """

    def __init__(self, service: Service, nbytes: int, ending: ExitStack) -> None:
        """Join them; `ending` is what is to be done when the worker has stopped."""
        self.service = service
        self.nbytes = nbytes
        self._ending = ending
        self.app: ASGIApp = Router()

    def answer(self, limits: Limits, key: str | None, store: ResponseStore) -> None:
        """Make `app` its API."""
        self.app = Router(api_routes(self.service, limits, key, store))

    @property
    def is_alive(self) -> bool:
        """Return whether it answers."""
        return self.service.worker.is_alive

    def state(self) -> WorkerState:
        """What its worker is at."""
        return self.service.worker.state()

    def begin_stop(self) -> None:
        """End what runs; returns at once."""
        self.service.worker.begin_stop()

    def close(self) -> None:
        """End the worker, then what goes with it."""
        self.service.worker.stop()
        self._ending.close()


def load_package(
    options: ServeOptions,
    directory: Path,
    provenance: Provenance,
    name: str,
    most_bytes: int | None = None,
) -> ServedPackage:
    """Load what answers.

    Parameters
    ----------
    name : in requests
    most_bytes : of the device, besides what is free there; it limits how many slots there are, and
        what of table and experts is on the device

    Raises
    ------
    Gemma4CompileError
        If it is damaged, does not fit, or does not run here.
    """
    console = Console()
    if options.prefix_cache is not None:
        check_free(options.prefix_cache)  # before the package is loaded
    package = console.open(
        directory,
        Check(options.check),
        drafts=options.draft,
        device=options.device,
    )
    if options.allow_media_hosts:
        check_modality("image", package.modalities)
    model = Model.of(package, name, options.context_length)
    ending = ExitStack()
    placement = Placement(options.ple, options.experts, options.expert_cache)
    found: list[tuple[MediaSettings, int]] = []  # known once the library is loaded

    def load() -> Slots:
        slots, drafts = options.slots, options.draft != 0
        if slots is None:
            slots = default_slots(package, options.context_length, drafts, placement, most_bytes)
        with console.loading(directory, package.library_name) as progress:
            engine = Engine(
                package,
                context_length=options.context_length,
                progress=progress,
                drafts=options.draft,
                ple=options.ple,
                experts=options.experts,
                expert_cache=options.expert_cache,
                sequences=slots,
                most_bytes=most_bytes,
            )
        if engine.experts.on_host:
            console.note(engine.experts.describe())
        wish = Wish(None, engine.context_length, drafts, placement, sequences=slots)
        nbytes = loaded_bytes(package, engine.device, wish, engine.placement)
        found.append((engine.media, nbytes))
        cache = None
        if options.prefix_cache is not None:
            cache = PrefixCache.of(options.prefix_cache, provenance, package.library_name)
        kept = kept_prefixes(engine, prefix_memory(options.prefix_memory), cache)
        if kept is not None:
            ending.callback(kept.close)

        def generator(one: TokenEngine) -> Generator:
            assert isinstance(one, SequenceEngine), "of this engine's sequences"
            beginnings = None if kept is None else kept.of(one)
            return Generator(one, model.tokenizer, package.stop_token_ids, engine.media, beginnings)

        if cache is not None and kept is None:
            console.note(nothing_kept(cache))
        hot = engine.expert_cache
        experts = None if hot is None else hot.counts
        if kept is None:
            return Slots(EngineSequences(engine), generator, experts=experts)
        shelf = HostShelf(kept)
        return Slots(EngineSequences(engine), generator, kept.counts, shelf, experts)

    worker = Worker(load, options.queue)
    worker.start()
    media, nbytes = found[0]
    service = Service(
        replace(model, media=media),
        worker,
        thinking=options.thinking,
        literal_specials=options.literal_specials,
        strict_model=options.strict_model,
        strict_request=options.strict_request,
        media_hosts=options.allow_media_hosts,
    )
    return ServedPackage(service, nbytes, ending)
