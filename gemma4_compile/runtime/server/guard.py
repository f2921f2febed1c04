"""Who may ask, and how every endpoint's errors are told."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gemma4_compile.runtime.server.api_error import ApiError, as_api_error, stopping

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
Refusal = Callable[[ApiError], Response]
"""An error in the form of a protocol."""
Client = tuple[str, str]
"""Who asks: the address, and the key that was brought."""

_OF_KEYS = ("x-api-key", "api-key")  # of Anthropic's clients, and of OpenAI's for Azure
_CLIENT_IS_GONE = 499  # nobody reads it; the number is nginx's, for logs


class Guarded(Protocol):
    """`Guard.guarded`."""

    def __call__(self, endpoint: Endpoint, refusal: Refusal = ...) -> Endpoint:
        """Return the endpoint, protected."""


class Guard:
    """Lets those in who bring the key."""

    def __init__(self, api_key: str | None) -> None:
        """Prepare.

        Parameters
        ----------
        api_key : what requests must bring, or None
        """
        self._api_key = api_key

    def guarded(self, endpoint: Endpoint, refusal: Refusal = ApiError.response) -> Endpoint:
        """The endpoint, protected by the key, with errors in the form of its protocol."""

        async def answer(request: HttpRequest) -> Response:
            try:
                self._check_key(request)
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=_CLIENT_IS_GONE)
            except asyncio.CancelledError:  # by the server, which does not wait any longer
                return refusal(stopping())
            except BaseException as error:  # a panic of native code is no Exception
                return refusal(as_api_error(error))

        return answer

    def admits(self, request: HttpRequest) -> bool:
        """Return whether a request brings the key, or needs none."""
        if self._api_key is None:
            return True
        return hmac.compare_digest(_key(request), os.fsencode(self._api_key))

    def _check_key(self, request: HttpRequest) -> None:
        if not self.admits(request):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _key(request: HttpRequest) -> bytes:
    """The key that a request brings, its bytes as they came: a bearer token, or in a header."""
    sent = request.headers.get("authorization", "").encode("latin-1")
    scheme, _, key = sent.partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    found = next((request.headers[name] for name in _OF_KEYS if name in request.headers), "")
    return found.encode("latin-1").strip()


def client_of(request: HttpRequest) -> Client:
    """Who asks: the address, and the key."""
    address = "" if request.client is None else request.client.host
    # Of a proxy, whose clients all have its own address; one who lies is still at that address.
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return f"{address} {forwarded}", _key(request).decode("latin-1")
