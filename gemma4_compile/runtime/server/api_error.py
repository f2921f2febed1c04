"""Errors of the API in the form that OpenAI's clients read."""

from __future__ import annotations

from starlette.responses import JSONResponse

from gemma4_compile.errors import printable


class ApiError(Exception):
    """A request that cannot be served.

    Attributes
    ----------
    status : HTTP status
    message : what was wrong, expected and found, and what to do
    param : the request's field that is to blame, or None
    code : a word for programs, or None
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, printable(message), code
        self.param = None if param is None else printable(param)

    @property
    def kind(self) -> str:
        """OpenAI's word for the class of the error."""
        if self.status == 401:
            return "authentication_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, object]:
        """The error object, as a body or as an event of a stream."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole answer."""
        headers = {"Retry-After": "5"} if self.status in (429, 503) else {}
        if self.status in (408, 413, 503):  # there may be more of the body
            headers["Connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)
