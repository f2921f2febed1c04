"""`/v1/completions` of several prompts, and with the prompt repeated."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gemma4_compile.runtime.server.answers import TextAnswer
from tests.live_server import TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode


def test_each_prompt_has_its_replies_in_order(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode(" is sunny.")
    answer = live.client().completions.create(
        model="scripted", prompt=["Rome", "A sunny day"], n=2, echo=True
    )
    assert [(one.index, one.text) for one in answer.choices] == [
        (0, "Rome is sunny."),
        (1, "Rome is sunny."),
        (2, "A sunny day is sunny."),
        (3, "A sunny day is sunny."),
    ]
    assert answer.usage is not None
    read = len(encode("<bos>Rome")) + len(encode("<bos>A sunny day"))
    assert answer.usage.prompt_tokens == read
    assert answer.usage.completion_tokens == 4 * len(engine.reply)


def test_a_stream_repeats_prompts_of_ids_too(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode(" is sunny.")
    texts = {0: "", 1: ""}
    ids: Any = [encode("Rome"), encode("A sunny day")]
    for chunk in live.client().completions.create(
        model="scripted", prompt=ids, echo=True, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {0: "Rome is sunny.", 1: "A sunny day is sunny."}


def test_prompts_that_find_no_place_are_refused_together() -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, queue=2) as live:
        with pytest.raises(openai.RateLimitError):
            live.client().completions.create(model="scripted", prompt=["a"] * 8)
        for _ in range(3):  # all places were given back
            answer = live.client().completions.create(model="scripted", prompt=["a", "b"])
            assert [one.text for one in answer.choices] == ["yes", "yes"]


def test_without_an_echo_nothing_opens_a_text() -> None:
    assert TextAnswer("m").first(0) is None
    assert TextAnswer("m", echoed=["", "a"]).first(0) is None
