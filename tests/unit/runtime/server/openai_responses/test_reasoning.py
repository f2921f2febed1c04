"""Reasoning in the fields that clients keep of it, and back."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.openai_responses.items import ItemReader
from gemma4_compile.runtime.server.openai_responses.reasoning import ReasoningForm, seal, unseal
from tests.unit.runtime.server.openai_responses.test_answers import answer, generated


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        (ReasoningForm(), ("content",)),  # as Codex keeps it where no summary is asked for
        (ReasoningForm(in_summary=True), ("summary",)),
        (ReasoningForm(in_summary=True, sealed=True), ("summary", "encrypted_content")),
        (ReasoningForm(sealed=True), ("summary", "encrypted_content")),  # the AI SDK
    ],
)
def test_reasoning_comes_back_by_what_a_client_keeps_of_it(
    form: ReasoningForm, kept: tuple[str, ...]
) -> None:
    thought = "hm,\n\u00e9 so"
    events: list[Event] = [ReasoningDelta(thought), ToolCall("f", {}, "c")]
    response: Any = answer(reasoning=form).whole(events, generated())
    item, call = response["output"]
    items = [{"type": "reasoning", "id": item["id"], **{name: item[name] for name in kept}}, call]
    reader = ItemReader(None)
    reader.read(Fields({}), "input", [{"role": "user", "content": "q"}, *items])
    assert [message.reasoning for message in reader.close().messages] == [None, thought]


@pytest.mark.parametrize(
    "content",
    ["", "gAAAAABo", seal("hm")[:-1], seal("hm") + "\u00e9", seal("some more")[:-4], seal("")[:18]],
)
def test_what_was_sealed_elsewhere_or_is_damaged_says_nothing(content: str) -> None:
    assert unseal(content) == ""
