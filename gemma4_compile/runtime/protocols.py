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
from gemma4_compile.runtime.server.service import Service


def api_routes(service: Service, limits: Limits, api_key: str | None) -> list[BaseRoute]:
    """The routes of the API.

    Parameters
    ----------
    api_key : what requests must bring, or None
    """
    exchange = Exchange(service, limits, api_key)
    own = state_routes(service.worker, exchange)
    return [
        *openai_routes(exchange),
        *response_routes(exchange),
        *message_routes(exchange),
        *ollama_routes(exchange),
        *own,
    ]
