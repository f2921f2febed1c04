"""An encoder's package that `gemma4-serve` has loaded."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import Router
from starlette.types import ASGIApp

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import ServeOptions
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.embedding.embedder import Embedder
from gemma4_compile.runtime.embedding.settings import usual_length
from gemma4_compile.runtime.engine.slot_room import loaded_bytes
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.room import Placement, Wish
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.embeddings.endpoints import embedding_routes
from gemma4_compile.runtime.server.embeddings.service import EmbeddingService
from gemma4_compile.runtime.server.worker import WorkerState
from gemma4_compile.runtime.terminal.console import Console


class ServedEmbedder:
    """A loaded encoder.

    Attributes
    ----------
    nbytes : of the device's memory, as its plan says; 0 where an old package does not
    """

    def __init__(self, service: EmbeddingService, nbytes: int) -> None:
        """Join them."""
        self.service, self.nbytes = service, nbytes
        self.app: ASGIApp = Router()

    def answer(self, limits: Limits, key: str | None) -> None:
        """Make `app` its API."""
        self.app = Router(embedding_routes(self.service, limits, key))

    @property
    def is_alive(self) -> bool:
        """Return whether it answers."""
        return self.service.is_alive

    def state(self) -> WorkerState:
        """What it is at."""
        return self.service.state()

    def begin_stop(self) -> None:
        """End what runs; returns at once."""
        self.service.begin_stop()

    def close(self) -> None:
        """End it, and let go of its memory."""
        self.service.close()


def load_embedder(options: ServeOptions, directory: Path, name: str) -> ServedEmbedder:
    """Load an encoder.

    Raises
    ------
    Gemma4CompileError
        If it is damaged, does not fit, or does not run here.
    """
    console = Console()
    package = console.open(directory, Check(options.check), drafts=0, device=options.device)
    compiled = package.chat_config.context_window_size
    length = options.context_length or usual_length(package.chat_config)
    if length > compiled:
        raise UsageError(
            f"--context-length: `{name}` was compiled for {compiled} tokens, found {length}",
            hint="give at most that, or compile the package with a larger --context",
        )

    def load() -> Embedder:
        with console.loading(directory, package.library_name) as progress:
            embedder = Embedder(package, progress=progress)
        embedder.max_tokens = length
        return embedder

    service = EmbeddingService(
        ModelCard.of_package(package, name, length),
        load,
        queue=options.queue,
        strict_model=options.strict_model,
        strict_request=options.strict_request,
    )
    wish = Wish(None, compiled, False, Placement())
    nbytes = loaded_bytes(package, Device.open(package.device), wish, Placement())
    return ServedEmbedder(service, nbytes)
