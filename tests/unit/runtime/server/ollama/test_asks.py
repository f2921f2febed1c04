"""What a request of Ollama's API asks for and does not get is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.ollama import asks
from gemma4_compile.runtime.server.ollama.requests import read_chat, read_generate
from tests.refused_fields import Places, check_refused, fields_of

USER = {"role": "user", "content": "a"}


def chat(**fields: Any) -> Any:
    return read_chat({"model": "m", "messages": [USER], **fields}, SamplingOptions(), 9)


def generate(**fields: Any) -> Any:
    return read_generate({"model": "m", "prompt": "a", **fields}, SamplingOptions())


PLACES: Places = {
    "chat": (chat, asks.CHAT),
    "generate": (generate, asks.GENERATE),
    "options": (lambda **fields: chat(options=fields), asks.OPTIONS),
    "message": (lambda **fields: chat(messages=[{**USER, **fields}]), asks.MESSAGE),
}


@pytest.mark.parametrize(("place", "name"), fields_of(PLACES))
def test_what_would_change_a_reply_is_refused_by_name(place: str, name: str) -> None:
    check_refused(PLACES, place, name)
