"""Errors of the API in the form that OpenAI's clients read."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import JSONResponse

from gemma4_compile.errors import UsageError, printable
from gemma4_compile.runtime.engine.sequence import ContextFullError, Overflow
from gemma4_compile.runtime.grammar.grammar import GrammarError
from gemma4_compile.runtime.server.request_ids import request_id

_log = logging.getLogger("gemma4_compile.serve")
TOO_LONG = "context_length_exceeded"
"""The code of a prompt that does not fit."""


class ApiError(Exception):
    """A request that cannot be served.

    Attributes
    ----------
    status : HTTP status
    message : what was wrong, expected and found, and what to do
    param : the request's field that is to blame, or None
    code : a word for programs, or None
    overflow : how long a prompt is that is too long, if that is known
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.overflow = overflow
        self.status, self.message, self.code = status, printable(message), code
        self.param = None if param is None else printable(param)

    @property
    def kind(self) -> str:
        """OpenAI's word for the class of the error."""
        if self.status == 401:
            return "authentication_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def told(self) -> str:
        """The message; of a prompt that does not fit in the words of OpenAI's own servers.

        Agents look for these, and for no code, before they leave out or sum up what was said.
        """
        if self.code != TOO_LONG:
            return self.message
        why = "Please reduce the length of the messages or of the text"
        if self.overflow is None:
            return f"This model's maximum context length is exceeded. {why}: {self.message}"
        most, tokens = self.overflow.most, self.overflow.tokens
        return (
            f"This model's maximum context length is {most} tokens. However, you requested "
            f"{tokens} tokens. {why}: {self.message}"
        )

    def body(self) -> dict[str, object]:
        """The error object, as a body or as an event of a stream."""
        return {
            "error": {
                "message": self.told,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole answer."""
        return self.response_of(self.body())

    def response_of(self, body: Mapping[str, object]) -> JSONResponse:
        """An answer with this body, which says the same in the form of another protocol."""
        headers = {"Retry-After": "5"} if self.status in (429, 503) else {}
        if self.status in (408, 413, 503):  # there may be more of the body
            headers["Connection"] = "close"
        return JSONResponse(body, self.status, headers)


def stopping() -> ApiError:
    """The error of a request that the end of the server ends."""
    return ApiError(503, "the server is stopping")


def does_not_fit(error: ContextFullError, param: str | None = None) -> ApiError:
    """The error of a request whose prompt, or whose reply, is too long for the context."""
    return ApiError(400, str(error), param=param, code=TOO_LONG, overflow=error.overflow)


def as_api_error(error: BaseException) -> ApiError:
    """Answer to the client about an error; one that should not happen is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextFullError):
        return does_not_fit(error)
    if isinstance(error, UsageError):  # a picture that must be whole, and is too long for a chunk
        return ApiError(400, f"{error}; {error.hint}" if error.hint else str(error))
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param="response_format")
    # The client learns no details.
    _log.error("the request %s failed", request_id() or "", exc_info=error)
    return ApiError(500, "the server failed; its log has the reason", code="internal_error")
