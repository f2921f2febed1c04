"""What a request of the Responses API asks for and does not get is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.asks import Ask
from gemma4_compile.runtime.server.openai_responses import asks
from gemma4_compile.runtime.server.openai_responses.requests import read_response_request


def read(**fields: Any) -> Any:
    return read_response_request(
        {"input": "Hi", **fields}, SamplingOptions(), 10, lambda name: [name]
    )


def image(**fields: Any) -> Any:
    part = {"type": "input_image", "image_url": "data:,", **fields}
    return read(input=[{"role": "user", "content": [part]}])


def tool(**fields: Any) -> Any:
    return read(tools=[{"type": "function", "name": "f", "parameters": {}, **fields}])


PLACES: dict[str, tuple[Any, Mapping[str, Ask]]] = {
    "request": (read, asks.REQUEST),
    "image": (image, asks.PART),
    "tool": (tool, asks.TOOL),
}


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, (_, table) in PLACES.items() for name in table]
)
def test_what_would_change_a_reply_is_refused_by_name(place: str, name: str) -> None:
    ask, table = PLACES[place]
    with pytest.raises(ApiError) as caught:
        ask(**{name: "something else"})
    assert caught.value.code == "unsupported_value"
    assert table[name].why in caught.value.message
    assert str(caught.value.param).endswith(name)
    for neutral in (None, *table[name].neutral):
        ask(**{name: neutral})
