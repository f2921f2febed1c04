"""An encoder as the server's endpoints use it: one thread that embeds, and a queue before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.embedding.embedder import Embedder, Float32Array
from gemma4_compile.runtime.embedding.errors import SettingError, TextTooLongError
from gemma4_compile.runtime.server.api_error import TOO_LONG, ApiError, stopping
from gemma4_compile.runtime.server.cards import ModelCard, is_called, unknown_model
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.embeddings.requests import EmbeddingRequest
from gemma4_compile.runtime.server.worker import WorkerState


@dataclass(frozen=True)
class Embedded:
    """Vectors (texts, dimensions) float32, and how many tokens were read for them."""

    vectors: Float32Array
    tokens: int


class EmbeddingService:
    """Loads an encoder in a thread of its own, which alone touches it.

    Attributes
    ----------
    card : what lists tell of the model
    strict_request : refuse requests with fields that are not known
    """

    def __init__(
        self,
        card: ModelCard,
        load: Callable[[], Embedder],
        *,
        queue: int,
        strict_model: bool = False,
        strict_request: bool = False,
    ) -> None:
        """Load it, and wait for that; errors of `load`.

        Parameters
        ----------
        queue : most requests that wait while another is served
        strict_model : refuse requests for another model's name
        """
        self.card, self.strict_request = card, strict_request
        self._strict_model, self._queue = strict_model, queue
        self._stopping = threading.Event()
        self._asked = 0
        self._counts = Counts()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        try:
            self._embedder: Embedder | None = self._thread.submit(load).result()
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def is_alive(self) -> bool:
        """Return whether it answers."""
        return not self._stopping.is_set()

    def state(self) -> WorkerState:
        """What it is at: it has no slots, and requests wait for its thread."""
        return WorkerState((), max(0, self._asked - 1), self._counts)

    def begin_stop(self) -> None:
        """Take no more requests, and end what runs before its next call; returns at once."""
        self._stopping.set()

    def close(self) -> None:
        """Wait for the thread, and let go of the model's memory."""
        self.begin_stop()
        self._thread.shutdown()
        self._embedder = None

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for another model than the one that is served."""
        if name is not None and not is_called(self.card.name, name):
            why = unknown_model(name, self.card.name)
            raise ApiError(404, why, param="model", code="model_not_found")

    def note_about(self, name: str | None) -> str | None:
        """A note in an answer to a request for another model; ApiError 404 on a strict server."""
        if self._strict_model:
            self.check_model(name)
        if name is None or is_called(self.card.name, name):
            return None
        return f"{unknown_model(name, self.card.name)}, which answers"

    async def embed(self, request: EmbeddingRequest) -> Embedded:
        """Vectors of a request's texts, when its turn comes.

        Raises
        ------
        ApiError
            400 for a text, a task or a size that is none, 429 if too many wait, 503 if the server
            is stopping.
        """
        if not self.is_alive:
            raise stopping()
        if self._asked > self._queue:
            why = f"{self._asked - 1} requests wait already: try again"
            raise ApiError(429, why, code="queue_full")
        self._asked += 1
        is_given_up = threading.Event()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._run, request, is_given_up)
        work.add_done_callback(self._done)
        try:
            return await asyncio.shield(work)
        finally:
            is_given_up.set()

    def _done(self, work: asyncio.Future[Embedded]) -> None:
        self._asked -= 1
        if not work.cancelled():
            work.exception()  # who has gone away does not ask for it

    def _run(self, request: EmbeddingRequest, is_given_up: threading.Event) -> Embedded:
        """In the thread."""

        def check() -> None:
            if self._stopping.is_set() or is_given_up.is_set():
                raise stopping()

        embedder = self._embedder
        check()
        assert embedder is not None, "until it is closed"
        texts = self._tokens(embedder, request, check)
        try:
            vectors = embedder.embed_tokens(
                texts, dimensions=request.dimensions, between_calls=check
            )
        except UsageError as error:
            raise _refused(error, request.field) from error
        tokens = sum(map(len, texts))
        self._counts.read_tokens += tokens
        return Embedded(vectors, tokens)

    def _tokens(
        self, embedder: Embedder, request: EmbeddingRequest, check: Callable[[], None]
    ) -> list[Sequence[int]]:
        found: list[Sequence[int]] = []
        for text in request.texts:
            check()
            if not isinstance(text, str):
                most = embedder.max_tokens if request.truncate else None
                between = request.special_tokens and text
                found.append(embedder.texts.between(text, most) if between else text)
                continue
            try:
                found += embedder.tokens_of([text], task=request.task, truncate=request.truncate)
            except UsageError as error:
                raise _refused(error, request.field) from error
        return found


def _refused(error: UsageError, param: str) -> ApiError:
    """The error of a request whose texts are none of the model's."""
    hint = f"; {error.hint}" if error.hint else ""
    if isinstance(error, SettingError):
        return ApiError(400, f"`{error.name}`: {error.why}{hint}", param=error.name)
    why = f"`{param}`: {error}{hint}"
    if isinstance(error, TextTooLongError):
        return ApiError(400, why, param=param, code=TOO_LONG, overflow=error.overflow)
    return ApiError(400, why, param=param)
