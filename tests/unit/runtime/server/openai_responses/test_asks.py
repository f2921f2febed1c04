"""What a request of the Responses API asks for and does not get is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.openai_responses import asks
from gemma4_compile.runtime.server.openai_responses.requests import read_response_request
from tests.refused_fields import Places, check_refused, fields_of


def read(**fields: Any) -> Any:
    return read_response_request(
        {"input": "Hi", **fields}, SamplingOptions(), 10, lambda name: [name]
    )


def image(**fields: Any) -> Any:
    part = {"type": "input_image", "image_url": "data:,", **fields}
    return read(input=[{"role": "user", "content": [part]}])


def tool(**fields: Any) -> Any:
    return read(tools=[{"type": "function", "name": "f", "parameters": {}, **fields}])


PLACES: Places = {
    "request": (read, asks.REQUEST),
    "image": (image, asks.PART),
    "tool": (tool, asks.TOOL),
}


@pytest.mark.parametrize(("place", "name"), fields_of(PLACES))
def test_what_would_change_a_reply_is_refused_by_name(place: str, name: str) -> None:
    check_refused(PLACES, place, name)
