"""Calls beside answers, schemas and limits, by the `openai` client over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

TEMPLATE = (Path(__file__).parents[3] / "tool_template.jinja").read_text("utf-8")
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]


def tool(name: str, **function: Any) -> Any:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine([])


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(engine, TEMPLATE) as live:
        yield live


def ask(live: Live, **options: Any) -> Any:
    options = {"model": "scripted", "messages": QUESTION, **options}
    return live.client().chat.completions.create(**options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_a_reply_that_may_call_once_ends_with_its_call(
    live: Live, engine: ScriptedEngine, choice: Any, stream: bool
) -> None:
    engine.reply = encode(
        "One moment.<|tool_call>call:get_weather{}<tool_call|>"
        "<|tool_call>call:get_time{}<tool_call|><|tool_response>"
    )
    options: Any = {"tools": [tool("get_weather")], "parallel_tool_calls": False, **choice}
    # The first letters of the stop text are held back until the call has come.
    answer = ask(live, stop="t.!", stream=stream, n=2, **options)
    if not stream:
        found = [
            (one.message.content, [call.function.name for call in one.message.tool_calls])
            for one in answer.choices
        ]
        assert found == [("One moment.", ["get_weather"])] * 2
        assert {one.finish_reason for one in answer.choices} == {"tool_calls"}
        return
    text, names, reasons = "", [], []
    for chunk in answer:
        text += chunk.choices[0].delta.content or ""
        names += [call.function.name for call in chunk.choices[0].delta.tool_calls or []]
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (text, names) == ("One moment." * 2, ["get_weather"] * 2)
    assert reasons == ["tool_calls"] * 2
