"""Replies that go on with a message of the model."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.requests import ChatRequest, read_chat_request
from tests.live_server import QUESTION, Live
from tests.scripted_engine import ScriptedEngine, encode

USER = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "I pick ("}


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    return read_chat_request({"messages": list(messages), **fields}, SamplingOptions(), 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"messages": [USER, {**BEGUN, "prefix": True}]},
        {"messages": [USER, {**BEGUN, "partial": True}]},
    ],
)
def test_a_last_message_of_the_model_may_begin_the_reply(fields: Any) -> None:
    request = chat(USER, BEGUN, **fields)
    assert ([m.content for m in request.messages], request.begun) == (["Hi"], "I pick (")
    assert request.thinking is False


def test_a_message_of_the_model_is_history_where_nothing_is_said() -> None:
    request = chat(USER, BEGUN, add_generation_prompt=True, continue_final_message=False)
    assert (len(request.messages), request.begun, request.thinking) == (2, "", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [BEGUN], "continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [{**BEGUN, "prefix": True}, USER]}, "messages[0].prefix"),
        ({"continue_final_message": True, "reasoning_effort": "low"}, "continue_final_message"),
        (
            {"continue_final_message": True, "response_format": {"type": "json_object"}},
            "continue_final_message",
        ),
    ],
)
def test_what_no_reply_can_go_on_with_is_named(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(USER, BEGUN, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_begun_reply_goes_on_where_it_was(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode(" sunny)")
    begun: list[Any] = [*QUESTION, {"role": "assistant", "content": "It is ("}]
    answer = live.client().chat.completions.create(
        model="scripted", messages=begun, extra_body={"continue_final_message": True}
    )
    assert answer.choices[0].message.content == " sunny)"
    prompt = encode("<bos><|turn>user\nWeather in Rome?<turn|>\n<|turn>model\nIt is (")
    assert engine.held[: len(prompt)] == prompt


def test_embeddings_are_refused_by_name(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        live.client().embeddings.create(model="scripted", input="a", encoding_format="float")
