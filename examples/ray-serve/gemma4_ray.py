"""A Ray Serve application: gemma4-serve on every GPU of a cluster, behind one address.

`serve run gemma4_ray:build package=/models/e2b-cuda gpus=1 most=8`; see README.md beside this file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from beginnings import beginning_of, client_of
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from replica import Replica, passed_on
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MOST_BODY_BYTES = 64 * 2**20
TOO_LONG = f"the request is too long: expected at most {MOST_BODY_BYTES} bytes"


class Settings(BaseModel):
    """The application's arguments; an unknown one is an error.

    Attributes
    ----------
    package : directory of the package on every machine, or a hub id
    gpus, cpus : what a replica takes of its machine
    fewest, most : replicas, as load asks for
    busy : requests that a replica has before another one is started
    waiting : most requests of a replica at a time; the next ones go to another, or wait in Ray
    options : further options of gemma4-serve
    """

    model_config = ConfigDict(extra="forbid")

    package: str
    gpus: float = Field(1, ge=0)
    cpus: float = Field(1, gt=0)
    fewest: int = Field(1, ge=1)
    most: int = Field(1, ge=1)
    busy: float = Field(2, gt=0)
    waiting: int = Field(16, ge=1)
    options: str = ""


@serve.deployment(
    health_check_period_s=10, health_check_timeout_s=30, graceful_shutdown_timeout_s=120
)
class Engine:
    """A replica: the package on its own device."""

    def __init__(self, package: str, options: list[str]) -> None:
        self._replica = Replica(Path(package), options)
        self._started = False

    async def check_health(self) -> None:
        """Ray's question; the first one starts the server, so that no request comes before."""
        if not self._started:
            await self._replica.start()
            self._started = True
        await self._replica.check()

    async def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> AsyncIterator[tuple[int, dict[str, str]] | bytes]:
        """Status and headers, then the body as it comes."""
        if not self._started:
            await self.check_health()
        async for part in self._replica.answer(method, path, headers, body):
            yield part

    async def __del__(self) -> None:
        """Called by Ray once a replica has no more requests."""
        await self._replica.stop()


@serve.deployment(num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Front:
    """Reads a request, and sends it to where its beginning was read before."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self._engines = engines.options(stream=True, method_name="answer")

    async def __call__(self, request: Request) -> Response:
        """Pass it on."""
        read = bytearray()  # grows in place, however small the pieces are
        async for piece in request.stream():
            read += piece
            if len(read) > MOST_BODY_BYTES:
                return JSONResponse(
                    {"error": {"message": TOO_LONG, "type": "invalid_request_error"}}, 413
                )
        body, headers = bytes(read), passed_on(request.headers)
        if request.client is not None:  # gemma4-serve tells clients apart by it
            known = headers.get("x-forwarded-for")
            headers["x-forwarded-for"] = ", ".join(filter(None, [known, request.client.host]))
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        beginning = beginning_of(request.url.path, client_of(headers), body)
        engines = self._engines.options(session_id=beginning)
        parts = engines.remote(request.method, path, headers, body)
        status, answered = await anext(parts)
        return StreamingResponse(_rest(parts), status_code=status, headers=answered)


async def _rest(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part


def build(settings: Settings) -> serve.Application:
    """The application, for `serve run` and `serve build`."""
    engine = Engine.options(
        ray_actor_options={"num_gpus": settings.gpus, "num_cpus": settings.cpus},
        max_ongoing_requests=settings.waiting,
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.fewest,
            max_replicas=max(settings.most, settings.fewest),
            target_ongoing_requests=settings.busy,
        ),
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    )
    queue = ["--queue", str(settings.waiting)]
    return Front.bind(engine.bind(settings.package, [*queue, *settings.options.split()]))
