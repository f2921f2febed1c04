"""What a custom tool is to the model, and its calls to the client."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.custom_tools import (
    custom_arguments,
    custom_description,
    custom_text,
)
from gemma4_compile.runtime.server.fields import Fields


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(custom_arguments("a\nb"), "a\nb"), ({"input": 3}, '{"input": 3}'), ({}, "{}")],
)
def test_the_text_of_a_call_is_what_the_model_made(arguments: Any, text: str) -> None:
    assert custom_text(ToolCall("f", arguments)) == text


GRAMMAR = {"definition": "start: /.+/", "syntax": "lark"}
TOLD = "Edits files.\nGrammar of `input`:\nstart: /.+/"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"type": "grammar", **GRAMMAR}, TOLD),  # of responses
        ({"type": "grammar", "grammar": GRAMMAR}, TOLD),  # of chats
        ({"type": "text"}, "Edits files."),
        (None, "Edits files."),
    ],
)
def test_the_model_is_told_the_grammar(form: Any, told: str) -> None:
    tool = Fields({"description": "Edits files.", "format": form}, "tools[0]")
    assert custom_description(tool) == told
    assert (tool.ignored.note() is None) == (told != TOLD)
