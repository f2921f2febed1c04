"""Agents over `tiny`, by the clients that users have: a question, a call, a result, an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.runtime.package.package import Package
from tests.child import run_within
from tests.live_server import LOCAL, PATIENCE_S, Live, serving_package
from tests.web.compiled import TINY, Compiler
from tools.training.tiny.tools import PAGE_CALCULATOR

FUNCTION: Any = PAGE_CALCULATOR.declared()["function"]
QUESTION, EXPRESSION = "What is 4321 * 17?", {"expression": "4321 * 17"}
BOTH = pytest.mark.parametrize("streams", [pytest.param(False, marks=pytest.mark.slow), True])
JAVASCRIPT = Path(__file__).with_name("clients")
RESULT, ANSWER = str(4321 * 17), "4321 times 17 is 73457."


@pytest.fixture(scope="module")
def live(compiled: Compiler) -> Iterator[Live]:
    package = Package.open(compiled(TINY, "cpu", "q4f16"))
    with serving_package(package, "tiny") as live:
        yield live


@BOTH
def test_an_agent_of_anthropic_s_client(live: Live, streams: bool) -> None:
    anthropic = pytest.importorskip("anthropic")
    url = f"http://{LOCAL}:{live.port}"
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)
    tool = {
        "name": FUNCTION["name"],
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def reply() -> Any:
        asked = {"model": "tiny", "max_tokens": 60, "messages": messages, "tools": [tool]}
        if not streams:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    called = reply()
    (use,) = called.content
    assert (called.stop_reason, use.type, use.input) == ("tool_use", "tool_use", EXPRESSION)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
    messages += [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    told = reply()
    assert ([block.text for block in told.content], told.stop_reason) == ([ANSWER], "end_turn")


@BOTH
def test_an_agent_of_openai_s_responses(live: Live, streams: bool) -> None:
    client = live.client().with_options(timeout=120)
    tools: Any = [{"type": "function", "strict": True, **FUNCTION}]

    def respond(asked: Any, before: str | None) -> Any:
        options: Any = {"model": "tiny", "tools": tools, "previous_response_id": before}
        if not streams:
            return client.responses.create(input=asked, **options)
        with client.responses.stream(input=asked, **options) as stream:
            return stream.get_final_response()

    called = respond(QUESTION, None)
    (call,) = called.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", EXPRESSION)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    assert respond([result], called.id).output_text == ANSWER


@BOTH
def test_an_agent_of_ollama_s_client(live: Live, streams: bool) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(f"http://{LOCAL}:{live.port}", timeout=120)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def reply() -> Any:
        asked = {"model": "tiny", "messages": messages, "tools": [PAGE_CALCULATOR.declared()]}
        if not streams:
            return client.chat(**asked).message
        pieces = [chunk.message for chunk in client.chat(stream=True, **asked)]
        calls = [call for piece in pieces for call in piece.tool_calls or ()]
        content = "".join(piece.content or "" for piece in pieces)
        return ollama.Message(role="assistant", content=content, tool_calls=calls or None)

    called = reply()
    (call,) = called.tool_calls
    assert (call.function.name, call.function.arguments) == (FUNCTION["name"], EXPRESSION)
    result = {"role": "tool", "tool_name": call.function.name, "content": RESULT}
    messages += [called, result]
    assert reply().content == ANSWER


@pytest.fixture(scope="module")
def spoken(live: Live) -> dict[str, Any]:
    """What the JavaScript clients read, all of them in one process."""
    if not (JAVASCRIPT / "node_modules" / "openai").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in tests/e2e/clients")
    task = {"tool": PAGE_CALCULATOR.declared(), "question": QUESTION, "result": RESULT}
    command = ["node", str(JAVASCRIPT / "clients.mjs"), f"http://{LOCAL}:{live.port}"]
    done = run_within(4 * PATIENCE_S, [*command, json.dumps(task)])
    assert done.returncode == 0, done.stdout + done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["chats", "responses", "messages", "ollama"])
def test_javascript_clients_run_an_agent_and_read_a_form(
    spoken: dict[str, Any], protocol: str
) -> None:
    read = spoken[protocol]
    assert (read["arguments"], read["answer"]) == (EXPRESSION, ANSWER)
    assert list(read["form"]) == ["a"]
    assert isinstance(read["form"]["a"], bool)


def test_javascript_clients_run_tools_themselves(spoken: dict[str, Any]) -> None:
    assert spoken["runners"] == {"chats": ANSWER, "messages": ANSWER}


@pytest.mark.parametrize(
    ("protocol", "kind", "status", "words"),
    [
        ("chats", "BadRequestError", 400, "messages"),
        ("responses", "NotFoundError", 404, "resp_"),
        ("messages", "BadRequestError", 400, "max_tokens"),
        ("ollama", "ResponseError", 400, "embeddings"),
    ],
)
def test_refusals_are_the_errors_of_javascript_clients(
    spoken: dict[str, Any], protocol: str, kind: str, status: int, words: str
) -> None:
    refused = spoken[protocol]["refused"]
    assert (refused["kind"], refused["status"]) == (kind, status)
    assert words in refused["message"]


def test_javascript_clients_read_counts_lists_and_events(spoken: dict[str, Any]) -> None:
    for protocol in ("responses", "messages"):
        assert spoken[protocol]["counted"] == spoken[protocol]["used"] > 0
    assert spoken["messages"]["stops"] == ["tool_use", "end_turn"]
    assert spoken["responses"]["kinds"] == ["response.created", "response.completed"]
    assert spoken["ollama"]["models"] == ["tiny:latest"]
