"""What a request may ask for beside a reply, by the `openai` client over real connections."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, ask, serving_script
from tests.scripted_engine import ScriptedEngine, encode, tiny_tokenizer


def tool(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", unit={"enum": ["c", "f"]}),
    tool("get_time", exact={"type": "boolean"}),
]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(encode("It is sunny."))


@pytest.mark.parametrize("stream", [False, True])
def test_several_replies(live: Live, engine: ScriptedEngine, stream: bool) -> None:
    answer = ask(live, n=3, stream=stream)
    if not stream:
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert {choice.message.content for choice in answer.choices} == {"It is sunny."}
        assert answer.usage.completion_tokens == 3 * len(engine.reply)
        return
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    for chunk in answer:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason
    assert texts == dict.fromkeys(range(3), "It is sunny.")
    assert ends == dict.fromkeys(range(3), "stop")


def test_a_seed_gives_each_reply_its_own_draws_and_the_same_ones_again(live: Live) -> None:
    def texts() -> list[str]:
        answer = ask(live, n=3, temperature=2, seed=5, max_tokens=6)
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first


def test_texts_may_be_several_too(live: Live) -> None:
    answer = live.client().completions.create(model="scripted", prompt="It", n=2, logprobs=2)
    assert [choice.text for choice in answer.choices] == ["It is sunny."] * 2
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == "It is sunny."
        assert choice.logprobs.text_offset is not None
        assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
        assert choice.logprobs.top_logprobs is not None
        # Words that are spelled alike, such as bytes, share an entry.
        assert all(1 <= len(top) <= 2 for top in choice.logprobs.top_logprobs)


def test_penalties_and_biases_reach_the_sampler(live: Live, engine: ScriptedEngine) -> None:
    (word,), said = encode("yes")[:1], engine.reply
    try:
        engine.reply = encode("yes") * 3
        assert ask(live).choices[0].message.content == "yesyesyes"
        assert ask(live, frequency_penalty=2).choices[0].message.content != "yesyesyes"
        assert ask(live, presence_penalty=2).choices[0].message.content != "yesyesyes"
        hot: Any = {"temperature": 1, "seed": 1, "max_tokens": len(engine.reply)}
        only = {"min_p": 1.0}  # the most probable alone
        assert ask(live, **hot, extra_body=only).choices[0].message.content == "yesyesyes"
        # Once it was said it is hardly more probable than all others.
        penalty = {"min_p": 0.9, "repetition_penalty": 1000}
        assert ask(live, **hot, extra_body=penalty).choices[0].message.content != "yesyesyes"
        banned = ask(live, logit_bias={str(word): -100}, max_tokens=3).choices[0].message.content
        assert "yes" not in banned
        forced = ask(live, logit_bias={str(word): 100}, max_tokens=5).choices[0].message.content
        assert forced == tiny_tokenizer().decode([word] * 5)
    finally:
        engine.reply = said


@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_must_call(live: Live, choice: str, stream: bool) -> None:
    named: Any = {"type": "function", "function": {"name": "get_time"}}
    options: Any = {"tools": TOOLS, "tool_choice": choice if choice == "required" else named}
    answer = ask(live, stream=stream, **options)
    if stream:
        deltas = [c.choices[0].delta for c in answer if c.choices]
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        assert not any(delta.content for delta in deltas)
    else:
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        calls = answer.choices[0].message.tool_calls
    assert calls
    for call in calls:
        arguments = json.loads(call.function.arguments)
        if choice == "named":
            assert call.function.name == "get_time"
        if call.function.name == "get_time":
            assert isinstance(arguments["exact"], bool)
        else:
            assert arguments["unit"] in ("c", "f")


def test_another_model_s_name_is_answered_with_a_note(live: Live, engine: ScriptedEngine) -> None:
    note = "the model `gpt-4` does not exist; this server has `scripted`, which answers"
    answer = ask(live, model="gpt-4")
    assert answer.choices[0].message.content == "It is sunny."
    assert (answer.model, answer.model_extra["note"]) == ("scripted", note)
    assert {chunk.model_extra["note"] for chunk in ask(live, model="gpt-4", stream=True)} == {note}
    text = live.client().completions.create(model="gpt-4", prompt="x")
    assert (text.model_extra or {})["note"] == note
    assert "note" not in ask(live).model_extra
    with serving_script(engine, TOOL_TEMPLATE, strict_model=True) as strict:
        with pytest.raises(openai.NotFoundError, match="this server has `scripted`"):
            ask(strict, model="gpt-4")
        assert ask(strict).choices


def test_no_client_can_cut_a_stream_s_event_in_two(live: Live, engine: ScriptedEngine) -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\x1dh\x1ei\rj"
    said, engine.reply = engine.reply, encode(text)
    body = {"messages": QUESTION, "stream": True}
    try:
        _, _, answer = live.request("POST", "/v1/chat/completions", body)
    finally:
        engine.reply = said
    lines = [line for line in answer.decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    told = [choice["delta"].get("content") or "" for c in chunks for choice in c["choices"]]
    assert "".join(told) == text


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_ignored_is_noted(live: Live, stream: bool) -> None:
    more: Any = {"extra_body": {"mystery": 1, "model": "other"}, "stream": stream}
    answer = ask(live, **more)
    for told in list(answer) if stream else [answer]:
        assert told.model_extra["note"] == (
            "the model `other` does not exist; this server has `scripted`, which answers; "
            "ignored, as they mean nothing here: `mystery` (1)"
        )
    text = live.client().completions.create(
        model="scripted", prompt="It", extra_body={"mystery": [1], "empty": None}
    )
    assert text.model_extra is not None
    assert text.model_extra["note"] == "ignored, as they mean nothing here: `mystery` (1)"
    assert ask(live).model_extra == {}


def test_an_option_that_the_template_reads_is_not_ignored(live: Live) -> None:
    fine = {"chat_template_kwargs": {"colour": "red"}}
    assert "colour" in ask(live, extra_body=fine).model_extra["note"]
    for name in ("tools", "bos_token"):
        with pytest.raises(openai.BadRequestError, match="the chat template reads it"):
            ask(live, extra_body={"chat_template_kwargs": {name: "x"}})


def test_a_strict_server_refuses_what_it_does_not_know(engine: ScriptedEngine) -> None:
    with serving_script(engine, TOOL_TEMPLATE, strict_request=True) as strict:
        assert ask(strict).choices[0].message.content == "It is sunny."
        with pytest.raises(openai.BadRequestError, match="`mystery`: is not a field"):
            ask(strict, extra_body={"mystery": 1})
        with pytest.raises(openai.BadRequestError, match="`mystery`: is not a field"):
            strict.client().completions.create(
                model="scripted", prompt="x", extra_body={"mystery": 1}
            )


def test_a_message_of_parse_goes_back_as_it_is(live: Live, engine: ScriptedEngine) -> None:
    class City(BaseModel):
        name: str

    said, engine.reply = engine.reply, encode('{"name":"Rome"}')
    try:
        client = live.client()
        first = client.chat.completions.parse(
            model="scripted", messages=QUESTION, response_format=City
        )
        message = first.choices[0].message
        assert message.parsed == City(name="Rome")
        again: Any = [*QUESTION, message.model_dump(warnings=False), *QUESTION]
        told = client.chat.completions.create(model="scripted", messages=again)
        assert told.model_extra is not None
        assert told.model_extra["note"].endswith(": `messages[].parsed` (1)")
        plain: Any = [*QUESTION, {"role": "assistant", "content": message.content}, *QUESTION]
        same = client.chat.completions.create(model="scripted", messages=plain)
        assert told.usage is not None
        assert same.usage is not None
        assert told.usage.prompt_tokens == same.usage.prompt_tokens
    finally:
        engine.reply = said
