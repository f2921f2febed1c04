"""`/v1/messages` over real connections, by Anthropic's own client where it is installed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.live_server import TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
ASKED: dict[str, Any] = {"model": "scripted", "max_tokens": 60, "messages": QUESTION}
CALLING = (
    "<|channel>thought\nThey want it.\n<channel|>One moment."
    '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'
)
PROMPT = "<bos><|turn>user\nWeather in Rome?<turn|>\n<|turn>model\n"


def ask(live: Live, path: str = "/v1/messages", **fields: Any) -> tuple[int, dict[str, Any]]:
    status, _, answer = live.request("POST", path, {**ASKED, **fields})
    return status, json.loads(answer)


def test_a_message_of_thoughts_text_and_a_call(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode(CALLING)
    message = client.messages.create(tools=[WEATHER], **ASKED)
    thought, text, call = message.content
    assert (thought.type, thought.thinking) == ("thinking", "They want it.")
    assert (text.type, text.text) == ("text", "One moment.")
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Rome"})
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", len(engine.reply))

    engine.reply = encode("It is sunny.")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    following = [
        *QUESTION,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    with client.messages.stream(tools=[WEATHER], **{**ASKED, "messages": following}) as stream:
        told = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert told == last.content[0].text == "It is sunny."
    assert last.stop_reason == "end_turn"
    assert last.usage.cache_read_input_tokens > 20  # what both prompts begin with
    said = encode('<tool_call|><|tool_response>response:get_weather{value:<|"|>sunny<|"|>}')
    assert str(said)[1:-1] in str(engine.held)


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_s_tool_runner_sends_all_messages(
    client: Any, engine: ScriptedEngine, stream: bool
) -> None:
    """It first asks the server to hold the conversation, as Anthropic's does."""
    engine.reply = encode(CALLING)

    @pytest.importorskip("anthropic").beta_tool
    def get_weather(city: str) -> str:
        """Tells the weather."""
        engine.reply = encode("It is sunny.")
        return f"sunny in {city}"

    last = client.beta.messages.tool_runner(
        tools=[get_weather], stream=stream, max_iterations=4, **ASKED
    ).until_done()
    assert (last.content[0].text, last.stop_reason) == ("It is sunny.", "end_turn")
    assert str(encode("sunny in Rome"))[1:-1] in str(engine.held)


def test_a_conversation_that_the_server_is_to_hold_is_refused_by_name(live: Live) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
            status, answer = ask(live, path, thread=thread)
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert answer["error"]["details"]["error_code"] == "thread_unsupported_request"
            assert "`thread`: this server holds no conversations" in answer["error"]["message"]
    assert ask(live, thread=None)[0] == 200


def test_the_same_message_in_pieces(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode(CALLING)
    with client.messages.stream(tools=[WEATHER], **ASKED) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[0].thinking == "They want it."
    assert message.content[2].input == {"city": "Rome"}
    assert message.stop_reason == "tool_use"
    assert kinds.count("content_block_stop") == 3


def test_a_begun_reply_goes_on_where_it_was(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode(" sunny)")
    begun = [*QUESTION, {"role": "assistant", "content": "It is ("}]
    message = client.messages.create(**{**ASKED, "messages": begun})
    assert message.content[0].text == " sunny)"
    prompt = encode(PROMPT + "It is (")
    assert engine.held[: len(prompt)] == prompt


def test_tokens_are_counted_without_a_reply(client: Any, engine: ScriptedEngine) -> None:
    held = list(engine.held)
    counted = client.messages.count_tokens(model="scripted", messages=QUESTION)
    assert counted.input_tokens == len(encode(PROMPT))
    assert engine.held == held


def test_a_stop_sequence_is_named(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode("One. Two.")
    message = client.messages.create(stop_sequences=["Three", " Two"], **ASKED)
    assert (message.content[0].text, message.stop_sequence) == ("One.", " Two")


def test_errors_are_of_the_client_s_classes(client: Any, live: Live) -> None:
    anthropic = pytest.importorskip("anthropic")
    with pytest.raises(anthropic.BadRequestError, match=r"thinking\.type"):
        client.messages.create(thinking={"type": "between_tools"}, **ASKED)
    with pytest.raises(anthropic.NotFoundError, match="batches are not served"):
        client.messages.batches.create(requests=[])
    for call in (
        client.messages.batches.list,
        lambda: client.messages.batches.retrieve("msgbatch_1"),
        lambda: client.messages.batches.cancel("msgbatch_1"),
        lambda: client.messages.batches.delete("msgbatch_1"),
    ):
        with pytest.raises(anthropic.NotFoundError, match="batches are not served"):
            call()
    long = [{"role": "user", "content": "word " * 600}]
    status, answer = ask(live, messages=long)
    assert (status, answer["type"]) == (400, "error")
    found = re.match(r"prompt is too long: (\d+) tokens > (\d+)", answer["error"]["message"])
    assert found is not None  # as Claude Code reads it, which makes so much room
    assert int(found[1]) > int(found[2]) == 512


def test_the_model_is_listed_in_both_forms(client: Any, live: Live) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").max_input_tokens == 512
    assert live.client().models.list().data[0].id == "scripted"


def test_a_note_tells_what_another_model_and_other_fields_come_to(live: Live) -> None:
    status, answer = ask(live, model="claude", thinking={"type": "disabled"}, mood="glad")
    assert status == 200
    assert "`claude` does not exist" in answer["note"]
    assert "`mood` (1)" in answer["note"]


def test_a_key_comes_in_either_header() -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, api_key="s3cret") as live:
        for headers in ({"x_api_key": "s3cret"}, {"authorization": "Bearer s3cret"}):
            assert live.request("POST", "/v1/messages", ASKED, **headers)[0] == 200
        for wrong in ({}, {"x_api_key": "s3cre"}, {"authorization": "Basic s3cret"}):
            status, _, body = live.request("POST", "/v1/messages", ASKED, **wrong)
            assert status == 401
            assert json.loads(body)["error"]["type"] == "authentication_error"


def test_a_strict_server_refuses_what_is_unknown() -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, strict_request=True) as live:
        assert ask(live)[0] == 200
        status, answer = ask(live, mood="glad")
        assert (status, "`mood`" in answer["error"]["message"]) == (400, True)
