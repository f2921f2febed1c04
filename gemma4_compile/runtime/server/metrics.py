"""`/metrics` in Prometheus' text and `/slots` in JSON: what the server is at."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.worker import Worker, WorkerState
from gemma4_compile.types import JsonObject


def slots_object(state: WorkerState) -> JsonObject:
    """What `/slots` says of a worker."""
    return {"slots": [asdict(slot) for slot in state.slots], "waiting": state.waiting}


def state_routes(worker: Worker, exchange: Exchange) -> list[BaseRoute]:
    """The routes that say what the server is at; they ask for the key as the API does."""

    async def slots(_request: Request) -> Response:
        return JSONResponse(slots_object(worker.state()))

    async def metrics(request: Request) -> Response:
        from gemma4_compile.runtime.server.prometheus import exposition

        text, content_type = exposition(worker.state(), request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    return [
        Route("/slots", exchange.guarded(slots), methods=["GET"]),
        Route("/metrics", exchange.guarded(metrics), methods=["GET"]),
    ]
