"""The API over real connections: the `openai` client, and bare requests where that is too kind."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gemma4_compile.runtime.server.body import Limits
from tests.live_server import LOCAL, PATIENCE_S, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

QUESTION: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLING = (
    "<|channel>thought\nThey want\nthe weather.\n<channel|>One moment."
    '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>'
    "<|tool_call>call:get_time{}<tool_call|><|tool_response>"
)


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(
        engine, TOOL_TEMPLATE, limits=Limits(body_bytes=20_000, messages=5)
    ) as live:
        yield live


def says(engine: ScriptedEngine, text: str) -> None:
    engine.reply = encode(text)


def test_a_reply_in_one_piece(live: Live, engine: ScriptedEngine) -> None:
    says(engine, "It is sunny.")
    answer = live.client().chat.completions.create(model="scripted", messages=QUESTION)
    (choice,), usage = answer.choices, answer.usage
    assert (choice.message.role, choice.message.content) == ("assistant", "It is sunny.")
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert answer.model == "scripted"
    assert usage is not None
    prompt = encode("<bos><|turn>user\nWeather in Rome?<turn|>\n<|turn>model\n")
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(engine.reply))
    assert usage.total_tokens == len(prompt) + len(engine.reply)
    assert engine.held == [*prompt, *engine.reply]


def test_a_reply_in_pieces(live: Live, engine: ScriptedEngine) -> None:
    says(engine, "It is sunny.")
    stream = live.client().chat.completions.create(
        model="scripted", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    told = [chunk.choices[0].delta.content for chunk in chunks[:-1]]
    assert "".join(piece or "" for piece in told) == "It is sunny."
    assert len(told) > 4
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(engine.reply)


def test_reasoning_text_and_calls_of_one_turn(live: Live, engine: ScriptedEngine) -> None:
    says(engine, CALLING)
    answer = live.client().chat.completions.create(
        model="scripted", messages=QUESTION, tools=[WEATHER]
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content == "One moment."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "They want\nthe weather."
    assert message.tool_calls is not None
    calls = [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls
        if call.type == "function"
    ]
    assert calls == [("get_weather", {"city": "Rome", "days": 2}), ("get_time", {})]
    assert len({call.id for call in message.tool_calls}) == 2


def test_the_same_turn_in_pieces(live: Live, engine: ScriptedEngine) -> None:
    says(engine, CALLING)
    stream = live.client().chat.completions.create(
        model="scripted", messages=QUESTION, tools=[WEATHER], stream=True
    )
    text, reasoning, reason = "", "", None
    calls: list[tuple[int, str | None]] = []
    for chunk in stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
        for call in delta.tool_calls or []:
            assert call.function is not None
            calls.append((call.index, call.function.name))
        reason = chunk.choices[0].finish_reason
    assert (text, reasoning, reason) == ("One moment.", "They want\nthe weather.", "tool_calls")
    assert calls == [(0, "get_weather"), (1, "get_time")]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_tool_result_goes_on_in_the_model_s_turn(
    live: Live, engine: ScriptedEngine, thinking: bool
) -> None:
    says(engine, CALLING)
    client = live.client()
    effort: Any = "low" if thinking else "none"
    options: Any = {"model": "scripted", "tools": [WEATHER], "reasoning_effort": effort}
    first = client.chat.completions.create(messages=QUESTION, **options).choices[0].message
    assert first.tool_calls is not None
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {index}"}
        for index, call in enumerate(first.tool_calls)
    ]
    says(engine, "hm\n<channel|>Sunny." if thinking else "Sunny.")
    second = client.chat.completions.create(
        messages=[*QUESTION, first.model_dump(exclude_none=True), *results], **options
    )
    prompt = encode(
        "<bos><|turn>system\n" + ("<|think|>\n" if thinking else "") + "<|tool>"
        'declaration:get_weather{description:<|"|>Tells the weather.<|"|>}<tool|><turn|>\n'
        "<|turn>user\nWeather in Rome?<turn|>\n<|turn>model\n"
        "<|channel>thought\nThey want\nthe weather.\n<channel|>"
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>'
        "<|tool_call>call:get_time{}<tool_call|>"
        '<|tool_response>response:get_weather{value:<|"|>result 0<|"|>}<tool_response|>'
        '<|tool_response>response:get_time{value:<|"|>result 1<|"|>}<tool_response|>'
        + ("<|channel>thought\n" if thinking else "")
    )
    assert engine.held[: len(prompt)] == prompt
    message = second.choices[0].message
    assert message.content == "Sunny."
    assert (message.model_extra or {}).get("reasoning_content") == ("hm" if thinking else None)


def test_a_reply_in_a_schema(live: Live, engine: ScriptedEngine) -> None:
    says(engine, "well, hello there")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    create = live.client().chat.completions.create
    answer = create(model="scripted", messages=QUESTION, response_format=form, max_tokens=40)
    assert (answer.choices[0].message.content or "").startswith('{"ok":')
    form["json_schema"]["schema"] = {"type": "nothing"}
    with pytest.raises(openai.BadRequestError, match="cannot be followed: Invalid type"):
        create(model="scripted", messages=QUESTION, response_format=form)


def test_stop_texts_and_max_tokens(live: Live, engine: ScriptedEngine) -> None:
    says(engine, "one two three")
    create = live.client().chat.completions.create
    stopped = create(model="scripted", messages=QUESTION, stop=" three").choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("one two", "stop")
    short = create(model="scripted", messages=QUESTION, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 2


def test_a_text_is_gone_on_with_as_it_is(live: Live, engine: ScriptedEngine) -> None:
    says(engine, "<|channel>thought\nhm")
    create = live.client().completions.create
    answer = create(model="scripted", prompt="Weather", max_tokens=50)
    assert answer.choices[0].text == "thought\nhm"
    assert engine.held[:1] == [2]
    assert engine.held[1 : 1 + len(encode("Weather"))] == encode("Weather")
    pieces = create(model="scripted", prompt=[2, 500, 501], stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == "thought\nhm"
    assert engine.held[:3] == [2, 500, 501]


def test_models(live: Live) -> None:
    client = live.client()
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError, match="this server has `scripted`"):
        client.models.retrieve("gpt-4")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "expected 1 to 5 messages"),
    "too many messages": ({"messages": QUESTION * 6}, "expected 1 to 5 messages, found 6"),
    "n": ({"n": 17}, "expected 1 to 16, found 17"),
    "no n": ({"n": 0}, "expected 1 to 16, found 0"),
    "bias of a word": ({"logit_bias": {"the": 1}}, "expected token ids, found 'the'"),
    "bias": ({"logit_bias": {"5": 101}}, "expected numbers from -100 to 100 for '5'"),
    "bias of no token": ({"logit_bias": {"1024": 1}}, "expected ids from 0 to 1023, found 1024"),
    "biases": ({"logit_bias": {str(i): 1 for i in range(1025)}}, "expected at most 1024"),
    "top_logprobs alone": ({"top_logprobs": 1}, "with `logprobs: true` only"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "expected 0 to 20, found 21"),
    "min_p": ({"min_p": 2}, "expected a number from 0 to 1, found 2"),
    "repetition": ({"repetition_penalty": 0}, "expected a number from 0.001 to 1000, found 0"),
    "asking field": ({"mirostat": 2}, "`mirostat`: this way of sampling is not served"),
    "temperature": ({"temperature": 3}, "expected a number from 0 to 2, found 3"),
    "max_tokens": ({"max_tokens": 0}, "expected 1 to"),
    "stop": ({"stop": ["a"] * 65}, "expected at most 64, found 65"),
    "result of no call": (
        {"messages": [*QUESTION, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
        "expected the id of a tool call before it",
    ),
    "penalties": ({"frequency_penalty": 3}, "expected a number from -2 to 2, found 3"),
    "a number beyond numbers": ({"temperature": 10**400}, "found an integer of 1329 bits"),
    "no tool": ({"tool_choice": "required"}, "`tool_choice`: needs `tools`"),
    "a choice": ({"tool_choice": "sometimes", "tools": [WEATHER]}, "expected auto, none, required"),
    "another tool": (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [WEATHER]},
        "`tools` declares no `f`",
    ),
    "no word on calls": (
        {"parallel_tool_calls": "no", "tools": [WEATHER]},
        "expected true or false",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_answered_with_what_is_wrong(live: Live, name: str) -> None:
    change, message = BAD[name]
    status, _, body = live.request(
        "POST", "/v1/chat/completions", {"messages": QUESTION, "model": "scripted", **change}
    )
    error = json.loads(body)["error"]
    assert status == 400
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"]


def test_a_prompt_that_does_not_fit(live: Live) -> None:
    long: list[Any] = [{"role": "user", "content": "x y " * 600}]
    with pytest.raises(openai.BadRequestError, match="the context holds 512") as raised:
        live.client().chat.completions.create(model="scripted", messages=long)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b'{"messages": NaN}', "application/json", 400),
        (b"[" * 10_000, "application/json", 400),
        (b'{"messages": "' + b"x" * 30_000 + b'"}', "application/json", 413),
        (b'{"messages": []}', "text/plain", 415),
        (b"\xff\xfe", "application/json", 400),
    ],
)
def test_bodies_that_are_no_requests(live: Live, body: bytes, kind: str, status: int) -> None:
    found, _, answer = live.request("POST", "/v1/chat/completions", body, Content_Type=kind)
    assert found == status
    assert json.loads(answer)["error"]["message"]


def test_paths_and_methods_that_do_not_exist(live: Live) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
        found, _, body = live.request(method, path)
        assert found == status
        assert path in json.loads(body)["error"]["message"]


def test_what_the_template_refuses_is_a_bad_request(engine: ScriptedEngine) -> None:
    template = "{{ raise_exception('this chat template declares no tools') if tools }}Hi"
    with serving_script(engine, template) as live:
        create = live.client().chat.completions.create
        with pytest.raises(openai.BadRequestError, match="declares no tools"):
            create(model="scripted", messages=QUESTION, tools=[WEATHER])


def test_a_model_without_a_chat_template_goes_on_with_texts(engine: ScriptedEngine) -> None:
    says(engine, "yes")
    with serving_script(engine, None) as live:
        client = live.client()
        with pytest.raises(openai.BadRequestError, match="use /v1/completions") as found:
            client.chat.completions.create(model="scripted", messages=QUESTION)
        assert found.value.code == "no_chat_template"
        assert client.completions.create(model="scripted", prompt="Hi").choices[0].text == "yes"
        assert live.request("GET", "/health")[0] == 200


def test_a_key_must_be_brought_where_one_is_set(engine: ScriptedEngine) -> None:
    says(engine, "yes")
    with serving_script(engine, TOOL_TEMPLATE, api_key="sesame") as live:
        with pytest.raises(openai.AuthenticationError):
            live.client("wrong").models.list()
        assert live.request("GET", "/v1/models")[0] == 401
        assert live.client("sesame").models.list().data


def test_an_engine_that_fails_is_reported_and_the_next_request_works(
    engine: ScriptedEngine,
) -> None:
    says(engine, "yes")

    def fail() -> None:
        raise RuntimeError("the device is lost: secret details")

    with serving_script(engine, TOOL_TEMPLATE) as live:
        client = live.client()
        engine.before_step = fail
        try:
            with pytest.raises(openai.InternalServerError) as raised:
                client.chat.completions.create(model="scripted", messages=QUESTION)
            assert "secret" not in str(raised.value)
            with pytest.raises(openai.APIError):
                list(
                    client.chat.completions.create(model="scripted", messages=QUESTION, stream=True)
                )
        finally:
            engine.before_step = lambda: None
        answer = client.chat.completions.create(model="scripted", messages=QUESTION)
        assert answer.choices[0].message.content == "yes"


class Gate:
    """Lets an engine's steps through one by one."""

    def __init__(self) -> None:
        self.steps = 0
        self.open = threading.Event()

    def __call__(self) -> None:
        self.steps += 1
        assert self.open.wait(PATIENCE_S)

    def wait(self, steps: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.steps < steps:
            assert time.monotonic() < end, f"{self.steps} steps, expected {steps}"
            time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_generation(stream: bool) -> None:
    engine, gate = ScriptedEngine([500] * 400), Gate()

    def slowly() -> None:
        gate()
        time.sleep(0.05)

    with serving_script(engine, TOOL_TEMPLATE) as live:
        body = json.dumps({"messages": QUESTION, "stream": stream}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json"
        )
        with socket.create_connection((LOCAL, live.port)) as connection:
            engine.before_step = gate
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            gate.wait(1)
            if stream:  # its head has been sent
                assert connection.recv(12) == b"HTTP/1.1 200"
        engine.before_step = slowly  # the server hears of it meanwhile
        gate.open.set()
        answer = live.client().chat.completions.create(
            model="scripted", messages=QUESTION, max_tokens=5
        )
        assert answer.choices[0].finish_reason == "length"
    assert gate.steps < 400  # that the first client asked for


def test_one_generation_runs_and_few_wait() -> None:
    engine, gate = ScriptedEngine(encode("yes")), Gate()
    engine.before_step = gate
    answers: list[str | None] = []

    def ask(live: Live) -> None:
        answer = live.client().chat.completions.create(model="scripted", messages=QUESTION)
        answers.append(answer.choices[0].message.content)

    with serving_script(engine, TOOL_TEMPLATE, queue=1) as live:
        threads = [threading.Thread(target=ask, args=(live,)) for _ in range(2)]
        threads[0].start()
        gate.wait(1)
        threads[1].start()
        live.until_waiting(1)
        with pytest.raises(openai.RateLimitError, match="1 requests wait already") as raised:
            live.client().chat.completions.create(model="scripted", messages=QUESTION)
        assert raised.value.response.headers["retry-after"]
        assert gate.steps == 1
        gate.open.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert answers == ["yes", "yes"]
