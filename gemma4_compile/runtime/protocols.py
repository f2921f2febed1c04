"""The protocols that the server answers, each below a package of its own."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gemma4_compile.runtime.server.anthropic.endpoints import message_routes
from gemma4_compile.runtime.server.anthropic.errors import refusal as of_anthropic
from gemma4_compile.runtime.server.api import openai_routes
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.cards import ANTHROPIC_VERSION
from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.metrics import state_routes
from gemma4_compile.runtime.server.ollama.endpoints import ollama_routes
from gemma4_compile.runtime.server.ollama.fixed import refusal as of_ollama
from gemma4_compile.runtime.server.openai_responses.endpoints import response_routes
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.openai_responses.stored import stored_routes
from gemma4_compile.runtime.server.service import Service

_OF_OLLAMA = re.compile(r"/api/(?!v[0-9]|chat/completions)")  # LM Studio's and Open WebUI's are not


def refuse(request: Request, error: ApiError) -> Response:
    """An error as the clients read it whose protocol the request is of, by its path."""
    path = request.url.path
    if _OF_OLLAMA.match(path):
        return of_ollama(error)
    is_anthropic = path.startswith("/v1/messages") or ANTHROPIC_VERSION in request.headers
    return of_anthropic(error) if is_anthropic else error.response()


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
