"""Ollama's endpoints over real connections, by Ollama's own client where it is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live_server import LOCAL, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

QUESTION: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
PROMPT = "<bos><|turn>user\nWeather in Rome?<turn|>\n<|turn>model\n"


@pytest.fixture(scope="module")
def client(live: Live) -> Any:
    ollama = pytest.importorskip("ollama")
    return ollama.Client(f"http://{LOCAL}:{live.port}", timeout=60)


def test_a_chat_whole_and_in_pieces(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode("<|channel>thought\nhm\n<channel|>It is sunny.")
    whole = client.chat("scripted:latest", QUESTION)
    assert (whole.message.content, whole.message.thinking) == ("It is sunny.", "hm")
    assert (whole.done_reason, whole.prompt_eval_count) == ("stop", len(encode(PROMPT)))
    pieces = list(client.chat("scripted", QUESTION, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == "It is sunny."
    assert [piece.done for piece in pieces[-2:]] == [False, True]


def test_a_prompt_and_a_raw_text(client: Any, engine: ScriptedEngine) -> None:
    engine.reply = encode("It is sunny.")
    told = client.generate("scripted", "Weather in Rome?", options={"num_predict": 2})
    assert (told.done_reason, told.eval_count) == ("length", 2)
    prompt = encode(PROMPT)
    assert engine.held[: len(prompt)] == prompt
    pieces = list(client.generate("scripted", "Rome", raw=True, stream=True))
    assert "".join(piece.response for piece in pieces) == "It is sunny."
    rome = encode("<bos>Rome")
    assert engine.held[: len(rome)] == rome


def test_log_probabilities_stand_at_the_end(
    client: Any, engine: ScriptedEngine, live: Live
) -> None:
    engine.reply = encode("<|channel>thought\nhm\n<channel|>It is sunny.")
    asked = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat("scripted", QUESTION, **asked).logprobs
    assert "".join(one.token for one in whole).startswith("It is sunny.")
    for one in whole:
        assert one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob
        assert len(one.top_logprobs) == 2
    *before, last = client.chat("scripted", QUESTION, stream=True, **asked)
    assert (last.logprobs, {piece.logprobs for piece in before}) == (whole, {None})

    engine.reply = encode("It is sunny.")
    told = client.generate("scripted", "Rome", raw=True, logprobs=True).logprobs
    assert "".join(one.token for one in told).startswith("It is sunny.")
    assert {len(one.top_logprobs) for one in told} == {0}
    assert client.chat("scripted", QUESTION).logprobs is None
    body = {"model": "scripted", "messages": QUESTION, "top_logprobs": 2, "stream": False}
    answer = json.loads(live.request("POST", "/api/chat", body)[2])
    assert ("logprobs" in answer, "`top_logprobs" in answer["note"]) == (False, True)


def test_what_is_told_of_the_model(client: Any) -> None:
    (listed,) = client.list().models
    (running,) = client.ps().models
    named = "scripted:latest"  # as Open WebUI asks for it, where it was listed
    assert (listed.model, running.model, running.context_length) == (named, named, 512)
    shown = client.show("scripted")
    assert shown.modelinfo["gemma4.context_length"] == 512
    assert shown.modelinfo["general.basename"] == "scripted"  # which VS Code shows
    assert shown.capabilities == ["completion", "tools", "thinking"]


def test_loading_is_no_work(client: Any, engine: ScriptedEngine) -> None:
    held = list(engine.held)
    assert client.generate("scripted").done_reason == "load"
    assert client.chat("scripted", keep_alive=0).done_reason == "unload"
    assert engine.held == held


def test_errors_are_the_client_s(client: Any) -> None:
    ollama = pytest.importorskip("ollama")
    asks: list[Any] = [
        lambda: client.embed("scripted", "a"),
        lambda: client.pull("other"),
        lambda: client.delete("scripted"),
        lambda: client.generate("scripted", "a", suffix="b"),
    ]
    for ask in asks:
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert caught.value.status_code == 400
        assert "not served" in caught.value.error


def test_the_command_finds_the_server(live: Live) -> None:
    assert live.request("HEAD", "/")[0] == 200
    status, _, version = live.request("GET", "/api/version")
    assert (status, json.loads(version)["version"].count(".")) == (200, 2)


def test_the_name_that_is_listed_is_the_model_s_in_every_protocol() -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, strict_model=True) as live:
        (listed,) = json.loads(live.request("GET", "/api/tags")[2])["models"]
        body = {"model": listed["name"], "messages": QUESTION, "max_tokens": 3}
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert live.request("POST", path, body)[0] == 200
        assert live.request("GET", f"/v1/models/{listed['name']}")[0] == 200


def test_another_model_is_answered_with_a_note_or_refused() -> None:
    reply = ScriptedEngine(encode("yes"))
    for strict, status in ((False, 200), (True, 404)):
        with serving_script(reply, TOOL_TEMPLATE, strict_model=strict) as live:
            for messages in (QUESTION, []):
                body = {"model": "llama3", "messages": messages, "stream": False}
                found, _, answer = live.request("POST", "/api/chat", body)
                assert found == status
                if strict:
                    assert "`llama3` does not exist" in json.loads(answer)["error"]
                elif messages:
                    assert "`llama3` does not exist" in json.loads(answer)["note"]
