"""`/v1/responses` over real connections, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from gemma4_compile.runtime.server.openai_responses import store
from tests.live_server import TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLING = (
    "<|channel>thought\nThey want it.\n<channel|>One moment."
    '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'
)
QUESTION = "Weather in Rome?"
PROMPT = "<bos><|turn>user\nWeather in Rome?<turn|>\n<|turn>model\n"


@pytest.fixture(scope="module")
def client(live: Live) -> openai.OpenAI:
    return live.client().with_options(timeout=60)


def test_what_is_kept_is_read_beside_the_event_loop(
    client: openai.OpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have megabytes, whatever the request has that names it."""
    engine.reply = encode("It is sunny.")
    first = client.responses.create(model="scripted", input=QUESTION)
    read, held_up = store._read, []

    def noted(written: bytes) -> object:
        try:
            asyncio.get_running_loop()
            held_up.append(written)
        except RuntimeError:
            held_up.append(b"")
        return read(written)

    monkeypatch.setattr(store, "_read", noted)
    client.responses.create(model="scripted", input="Why?", previous_response_id=first.id)
    client.responses.retrieve(first.id)
    assert len(list(client.responses.input_items.list(first.id))) == 1
    assert len(held_up) >= 3
    assert set(held_up) == {b""}


def test_a_conversation_that_the_server_keeps(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.reply = encode(CALLING)
    first = client.responses.create(model="scripted", input=QUESTION, tools=[WEATHER])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    thought, _, call = first.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "They want it."
    assert (first.output_text, first.status) == ("One moment.", "completed")
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})

    engine.reply = encode("It is sunny.")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    with client.responses.stream(
        model="scripted", input=[result], tools=[WEATHER], previous_response_id=first.id
    ) as stream:
        told = [event.delta for event in stream if event.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert "".join(told) == last.output_text == "It is sunny."
    assert last.usage is not None
    assert last.usage.input_tokens_details.cached_tokens > 20
    said = encode('<tool_call|><|tool_response>response:get_weather{value:<|"|>sunny<|"|>}')
    assert str(said)[1:-1] in str(engine.held)

    assert client.responses.retrieve(last.id).output_text == "It is sunny."
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_what_a_response_was_made_of_is_listed(
    client: openai.OpenAI, engine: ScriptedEngine, live: Live
) -> None:
    engine.reply = encode(CALLING)
    first = client.responses.create(model="scripted", input=QUESTION, tools=[WEATHER])
    call = first.output[2]
    assert call.type == "function_call"
    engine.reply = encode("It is sunny.")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    last = client.responses.create(
        model="scripted", input=[result], tools=[WEATHER], previous_response_id=first.id
    )
    for limit in (1, 2, 5, 100):  # the client asks for page after page
        listed = list(client.responses.input_items.list(last.id, order="asc", limit=limit))
        assert [TypeAdapter(ResponseItem).validate_python(one.to_dict()) for one in listed]
        assert [one.type for one in listed] == [
            *("message", "reasoning", "message", "function_call", "function_call_output")
        ]
        assert [one.id for one in listed[1:4]] == [one.id for one in first.output]
        assert list(client.responses.input_items.list(last.id, limit=limit)) == listed[::-1]
    (asked,) = client.responses.input_items.list(first.id)
    assert asked == listed[0]  # it keeps its id
    assert asked.to_dict()["content"] == [{"type": "input_text", "text": QUESTION}]
    page = client.responses.input_items.list(last.id, limit=2, after=listed[3].id)
    assert (page.has_more, [one.id for one in page.data]) == (True, [listed[2].id, listed[1].id])
    with pytest.raises(openai.NotFoundError):
        live.client("another").responses.input_items.list(last.id)


def test_items_of_responses_are_named_by_their_ids(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.reply = encode(CALLING)
    first = client.responses.create(model="scripted", input=QUESTION, tools=[WEATHER])
    call = first.output[2]
    assert call.type == "function_call"
    engine.reply = encode("It is sunny.")
    items: Any = [
        {"role": "user", "content": QUESTION},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    last = client.responses.create(model="scripted", input=items, tools=[WEATHER])
    assert last.output_text == "It is sunny."
    said = encode('<tool_call|><|tool_response>response:get_weather{value:<|"|>sunny<|"|>}')
    assert str(said)[1:-1] in str(engine.held)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="there is no item `rs_"):
        client.responses.create(model="scripted", input=items, tools=[WEATHER])


def test_custom_tools_and_namespaces_are_called_as_they_were_declared(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    tools: Any = [
        {"type": "custom", "name": "say"},
        {"type": "namespace", "name": "mcp__x", "description": "", "tools": [WEATHER]},
    ]
    calls = [
        '<|tool_call>call:say{input:<|"|>a\nb<|"|>}<tool_call|>',
        '<|tool_call>call:mcp__x__get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
    ]
    engine.reply = encode("".join(calls))
    asked: dict[str, Any] = {"model": "scripted", "input": QUESTION, "tools": tools}
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    pieces = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert pieces == ["a\nb"]
    output = client.responses.create(**asked).output
    said, called = (item.to_dict() for item in output)
    assert (said["type"], said["name"], said["input"]) == ("custom_tool_call", "say", "a\nb")
    assert (called["name"], called["namespace"]) == ("get_weather", "mcp__x")

    engine.reply = encode("Done.")
    items: Any = [
        {"role": "user", "content": QUESTION},
        *(item.to_dict() for item in output),
        {"type": "custom_tool_call_output", "call_id": said["call_id"], "output": "1"},
        {"type": "function_call_output", "call_id": called["call_id"], "output": "2"},
    ]
    assert client.responses.create(**{**asked, "input": items}).output_text == "Done."
    assert str(encode("".join(calls)))[1:-1] in str(engine.held)


def test_items_may_declare_more_tools(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    say: Any = {"type": "custom", "name": "say"}
    more: Any = {"type": "additional_tools", "role": "developer", "tools": [WEATHER, say]}
    items: Any = [{"role": "system", "content": "Be kind."}, more, {"role": "user", "content": "a"}]
    engine.reply = encode('<|tool_call>call:say{input:<|"|>b<|"|>}<tool_call|>')
    first = client.responses.create(model="scripted", input=items, tools=[WEATHER])
    (call,) = first.output
    assert call.type == "custom_tool_call"
    prompt = str(engine.held)
    assert [prompt.count(str(encode(one))[1:-1]) for one in ("get_weather", "say", "Be kind.")] == [
        *(1, 2, 1)  # the declaration of `say` and its call
    ]
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
    choice: Any = {"type": "custom", "name": "say"}
    again = client.responses.create(
        model="scripted", input=[result], previous_response_id=first.id, tool_choice=choice
    )
    assert again.output[0].type == "custom_tool_call"
    items[1] = {**more, "tools": [WEATHER, {"type": "function", "name": "a b"}]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input=items)
    assert caught.value.param == "input[1].tools[1].name"


def test_the_same_response_in_pieces(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.reply = encode(CALLING)
    kinds = []
    with client.responses.stream(model="scripted", input=QUESTION, tools=[WEATHER]) as stream:
        for event in stream:
            kinds.append(event.type)
        response = stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.done") == 3


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "tool", "name": "get_weather"}, {"type": "function", "name": "get_weather"}),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            {"type": "function", "name": "get_weather"},
        ),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ("none", "none"),
        (None, "auto"),
    ],
)
def test_a_choice_comes_back_in_the_words_of_typed_clients(
    live: Live, engine: ScriptedEngine, choice: Any, told: Any
) -> None:
    engine.reply = encode(CALLING)
    body = {"model": "scripted", "input": QUESTION, "tools": [WEATHER], "tool_choice": choice}
    status, _, answer = live.request("POST", "/v1/responses", {**body, "max_output_tokens": 2})
    assert (status, json.loads(answer)["tool_choice"]) == (200, told)
    TypeAdapter(Response).validate_python(json.loads(answer))


def test_pictures_as_they_are_sent_are_what_is_asked_for(live: Live) -> None:
    for asked, status in (("auto", 200), ("disabled", 200), ("enabled", 400)):
        body = {"input": QUESTION, "image": {"context_compression": asked}, "max_output_tokens": 2}
        assert live.request("POST", "/v1/responses", body)[0] == status


def test_log_probabilities_stand_beside_the_text(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.reply = encode("It is sunny.")
    response = client.responses.create(model="scripted", input=QUESTION, top_logprobs=2)
    (item,) = response.output
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(one.token for one in part.logprobs).startswith("It is sunny.")
    assert {len(one.top_logprobs) for one in part.logprobs} == {2}


def test_tokens_are_counted_without_a_reply(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="scripted", input=QUESTION)
    assert counted.input_tokens == len(encode(PROMPT))


def test_a_reply_that_is_too_long_is_incomplete(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.reply = encode("It is sunny.")
    response = client.responses.create(model="scripted", input=QUESTION, max_output_tokens=2)
    assert (response.status, response.output[0].type) == ("incomplete", "message")


def test_errors_are_of_the_client_s_classes(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "web_search"}]
    with pytest.raises(openai.BadRequestError, match="only functions and custom tools are served"):
        client.responses.create(model="scripted", input="a", tools=tools)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="scripted", input="a", previous_response_id="resp_0")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="close the connection"):
        client.responses.cancel("resp_0")
    with pytest.raises(openai.NotFoundError, match="conversations are not made shorter here"):
        client.post("/responses/compact", cast_to=object, body={"input": "a"})


def test_nothing_is_kept_that_is_not_to_be_stored_and_nobody_sees_another_s(
    client: openai.OpenAI, live: Live
) -> None:
    unkept = client.responses.create(model="scripted", input="a", store=False)
    kept = client.responses.create(model="scripted", input="a")
    stranger = live.client("another")
    for one, name in ((client, unkept.id), (stranger, kept.id)):
        with pytest.raises(openai.NotFoundError):
            one.responses.retrieve(name)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.create(model="scripted", input="a", previous_response_id=kept.id)
    assert client.responses.retrieve(kept.id).id == kept.id


def test_a_strict_server_refuses_what_is_unknown() -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, strict_request=True) as live:
        for fields, status in (({}, 200), ({"mood": "glad"}, 400)):
            body = {"input": QUESTION, **fields}
            assert live.request("POST", "/v1/responses", body)[0] == status


def test_a_stream_of_a_prompt_that_does_not_fit_fails_as_openais_does(
    client: openai.OpenAI, live: Live
) -> None:
    """Codex looks for the code of `response.failed`, and says of HTTP 400 that it is invalid."""
    long = "x y " * 600
    with pytest.raises(openai.BadRequestError, match="the context holds 512") as refused:
        client.responses.create(model="scripted", input=long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIError, match="the context holds 512") as raised:
        list(client.responses.create(model="scripted", input=long, stream=True))
    assert raised.value.code == "context_length_exceeded"
    asked = {"model": "scripted", "input": long, "stream": True}
    status, _, body = live.request("POST", "/v1/responses", asked)
    events = [
        json.loads(line.removeprefix("data: "))
        for line in body.decode().splitlines()
        if line.startswith("data: ")
    ]
    assert status == 200
    kinds = ["response.created", "response.in_progress", "error", "response.failed"]
    assert [(one["type"], one["sequence_number"]) for one in events] == list(
        zip(kinds, range(4), strict=True)
    )
    failed = events[-1]["response"]
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert failed["error"]["code"] == events[2]["error"]["code"] == "context_length_exceeded"
    assert failed["error"]["message"] == events[2]["error"]["message"]
