"""What endpoints of every protocol share: who asks, by which key."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from starlette.requests import Request

from gemma4_compile.runtime.server.guard import client_of
from tests.live_server import QUESTION, TOOL_TEMPLATE, serving_script
from tests.scripted_engine import ScriptedEngine, encode


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "client": ("127.0.0.1", 1)})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"authorization": "Bearer  k "}, "k"),
        ({"authorization": "bearer k", "x_api_key": "other"}, "k"),
        ({"x_api_key": "k"}, "k"),
        ({"api_key": "k"}, "k"),
        ({"authorization": "Bearer k", "api_key": "other"}, "k"),
        ({"authorization": "Basic k"}, ""),
    ],
)
def test_a_client_is_known_by_its_key_in_either_header(headers: Any, key: str) -> None:
    assert client_of(request(**headers)) == ("127.0.0.1 ", key)


def test_clients_of_a_proxy_are_told_apart() -> None:
    one, other = (client_of(request(x_forwarded_for=name)) for name in ("10.0.0.1", "10.0.0.2"))
    assert one != other


def test_a_client_for_azure_is_answered() -> None:
    with serving_script(ScriptedEngine(encode("Sunny.")), TOOL_TEMPLATE, api_key="k") as live:
        asks: dict[str, Any] = {"azure_endpoint": live.url[:-3], "api_version": "2025-04-01"}
        client = openai.AzureOpenAI(api_key="k", max_retries=0, **asks)
        chat = client.chat.completions.create(model="scripted", messages=QUESTION)
        assert chat.choices[0].message.content == "Sunny."
        text = client.completions.create(model="scripted", prompt="a")
        assert text.choices[0].text == "Sunny."
        response = client.responses.create(model="scripted", input="a")
        assert response.output_text == "Sunny."
        assert client.responses.retrieve(response.id).output_text == "Sunny."
        assert [model.id for model in client.models.list()] == ["scripted"]
        with pytest.raises(openai.BadRequestError, match="no embeddings"):
            client.embeddings.create(model="scripted", input="a")
        stranger = openai.AzureOpenAI(api_key="other", max_retries=0, **asks)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
