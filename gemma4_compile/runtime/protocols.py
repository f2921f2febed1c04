"""The protocols that the server answers, each below a package of its own."""

from __future__ import annotations

from starlette.routing import BaseRoute

from gemma4_compile.runtime.server.anthropic.endpoints import message_routes
from gemma4_compile.runtime.server.api import openai_routes
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.metrics import state_routes
from gemma4_compile.runtime.server.ollama.endpoints import ollama_routes
from gemma4_compile.runtime.server.openai_responses.endpoints import response_routes
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.openai_responses.stored import stored_routes
from gemma4_compile.runtime.server.service import Service


def api_routes(
    service: Service, limits: Limits, api_key: str | None, store: ResponseStore | None = None
) -> list[BaseRoute]:
    """The routes of the API.

    Parameters
    ----------
    api_key : what requests must bring, or None
    store : of responses; by default one of its own
    """
    exchange = Exchange(service, limits, api_key)
    kept = ResponseStore() if store is None else store
    own = state_routes(service.worker, exchange)
    return [
        *openai_routes(exchange),
        *response_routes(exchange, kept),
        *stored_routes(kept, exchange.guarded),
        *message_routes(exchange),
        *ollama_routes(exchange),
        *own,
    ]
