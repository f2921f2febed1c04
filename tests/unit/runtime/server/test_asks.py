"""What a request asks for and does not get is refused; what asks for nothing is not."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.requests import read_chat_request, read_completion_requests
from tests.refused_fields import Places, check_refused, fields_of

DEFAULTS = SamplingOptions(temperature=0.7)
USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}


def read(**fields: Any) -> Any:
    return read_chat_request({"messages": [USER], **fields}, DEFAULTS, 10)


def text(**fields: Any) -> Any:
    (request,) = read_completion_requests({"prompt": "x", **fields}, DEFAULTS)
    return request


def message(**fields: Any) -> Any:
    return read(messages=[{**USER, **fields}])


def part(**fields: Any) -> Any:
    return message(content=[{"type": "text", "text": "a", **fields}])


def image(**fields: Any) -> Any:
    address = {"url": "data:,", **fields}
    return message(content=[{"type": "image_url", "image_url": address}])


def call(**fields: Any) -> Any:
    return read(messages=[{"role": "assistant", "tool_calls": [{**CALL, **fields}]}])


def called(**fields: Any) -> Any:
    return call(function={"name": "f", "arguments": "{}", **fields})


def tool(**fields: Any) -> Any:
    return read(tools=[{"type": "function", "function": {"name": "f"}, **fields}])


def declared(**fields: Any) -> Any:
    return tool(function={"name": "f", **fields})


PLACES: Places = {
    "chat": (read, asks.CHAT),
    "completion": (text, asks.COMPLETION),
    "message": (message, asks.MESSAGE),
    "part": (part, {name: ask for name, ask in asks.PART.items() if name != "text"}),
    "image": (image, asks.IMAGE),
    "call": (call, asks.CALL),
    "called": (called, asks.CALLED),
    "tool": (tool, asks.TOOL),
    "declared": (declared, asks.DECLARED),
    "template": (lambda **fields: read(chat_template_kwargs=fields), asks.TEMPLATE_OPTIONS),
    "form": (
        lambda **fields: read(
            response_format={"type": "json_schema", "json_schema": {"name": "n", **fields}}
        ),
        asks.RESPONSE_FORMAT,
    ),
    "reasoning": (lambda **fields: read(reasoning=fields), asks.REASONING),
}


@pytest.mark.parametrize(("place", "name"), fields_of(PLACES))
def test_what_would_change_a_reply_is_refused_by_name(place: str, name: str) -> None:
    check_refused(PLACES, place, name)


@pytest.mark.parametrize("empty", ["", [], {}])
def test_what_is_empty_asks_for_nothing_but_a_search(empty: Any) -> None:
    read(functions=empty, guided_json=empty, audio=empty)
    with pytest.raises(ApiError, match="does not search"):
        read(web_search_options={})


@pytest.mark.parametrize("other", list(asks.SYNONYMS))
def test_a_synonym_is_no_field_of_its_own(other: str) -> None:
    assert other not in {*asks.CHAT, *asks.COMPLETION}


def test_a_text_is_not_asked_as_a_chat_is() -> None:
    text(best_of=3, n=3, logprobs=False, response_format={"type": "text"})
    asking: list[dict[str, Any]] = [{"best_of": 3}, {"tools": [{}]}, {"reasoning_effort": "high"}]
    for fields in asking:
        with pytest.raises(ApiError) as caught:
            text(**fields)
        assert caught.value.param in fields
