"""What a request of Ollama's API asks for and does not get is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.asks import Ask
from gemma4_compile.runtime.server.ollama import asks
from gemma4_compile.runtime.server.ollama.requests import read_chat, read_generate

USER = {"role": "user", "content": "a"}


def chat(**fields: Any) -> Any:
    return read_chat({"model": "m", "messages": [USER], **fields}, SamplingOptions(), 9)


def generate(**fields: Any) -> Any:
    return read_generate({"model": "m", "prompt": "a", **fields}, SamplingOptions())


PLACES: dict[str, tuple[Any, Mapping[str, Ask]]] = {
    "chat": (chat, asks.CHAT),
    "generate": (generate, asks.GENERATE),
    "options": (lambda **fields: chat(options=fields), asks.OPTIONS),
    "message": (lambda **fields: chat(messages=[{**USER, **fields}]), asks.MESSAGE),
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
