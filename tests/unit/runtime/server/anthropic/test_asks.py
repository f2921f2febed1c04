"""What a request of Anthropic's API asks for and does not get is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.anthropic import asks
from gemma4_compile.runtime.server.anthropic.requests import read_messages_request
from gemma4_compile.runtime.server.api_error import ApiError
from tests.refused_fields import Places, check_refused, fields_of

USER = {"role": "user", "content": "Hi"}


def read(**fields: Any) -> Any:
    body = {"messages": [USER], "max_tokens": 9, **fields}
    return read_messages_request(body, SamplingOptions(), 10)


def block(**fields: Any) -> Any:
    return read(messages=[{"role": "user", "content": [fields]}])


def image(**fields: Any) -> Any:
    source = {"type": "base64", "media_type": "image/png", "data": ""}
    return block(type="image", source=source, **fields)


def document(**fields: Any) -> Any:
    source = {"type": "text", "media_type": "text/plain", "data": "a"}
    return block(type="document", source=source, **fields)


def tool(**fields: Any) -> Any:
    return read(tools=[{"name": "f", "input_schema": {"type": "object"}, **fields}])


PLACES: Places = {
    "request": (read, asks.REQUEST),
    "image": (image, asks.IMAGE),
    "document": (document, asks.DOCUMENT),
    "tool": (tool, asks.TOOL),
}


@pytest.mark.parametrize(("place", "name"), fields_of(PLACES))
def test_what_would_change_a_reply_is_refused_by_name(place: str, name: str) -> None:
    check_refused(PLACES, place, name)


def test_a_tool_that_code_may_call_too_is_called_by_the_model() -> None:
    tool(allowed_callers=["direct", "code_execution_20250825"])
    with pytest.raises(ApiError, match="runs no tools and no code"):
        tool(allowed_callers=["code_execution_20250825"])
