"""Custom tools and namespaces are functions to the model, and themselves to the client."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.messages import MAX_TOOLS
from gemma4_compile.runtime.server.openai_responses.tools import (
    DeclaredTools,
    ToolForm,
    name_in,
    read_tools,
)

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SERVER = {
    "type": "namespace",
    "name": "mcp__x",
    "description": "A server.",
    "tools": [{**ADD, "strict": False}, {"type": "custom", "name": "say"}],
}
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def read(*tools: Any) -> tuple[DeclaredTools, str | None]:
    fields = Fields({"tools": list(tools)}, ignored=Ignored())
    return read_tools(fields), fields.ignored.note()


def function(name: str, description: str, parameters: Any) -> dict[str, Any]:
    declared = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": declared}


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    given, note = read(ADD, PATCH)
    described = "Edits files.\nGrammar of `input`:\nstart: /.+/"
    assert given.tools == (
        function("add", "Adds.", SCHEMA),
        function("apply_patch", described, INPUT),
    )
    assert given.forms == {"apply_patch": ToolForm("apply_patch", is_custom=True)}
    assert note == "ignored, as they mean nothing here: `tools[].format.definition` (1)"


def test_a_namespace_is_in_the_names_of_its_functions() -> None:
    given, note = read(SERVER, ADD)
    assert given.tools == (
        function("mcp__x__add", "Adds.", SCHEMA),
        function("mcp__x__say", "", INPUT),
        function("add", "Adds.", SCHEMA),
    )
    assert given.forms == {
        "mcp__x__add": ToolForm("add", "mcp__x"),
        "mcp__x__say": ToolForm("say", "mcp__x", is_custom=True),
    }
    assert note is None
    assert name_in("mcp__x__", "add") == name_in("mcp__x", "add") == "mcp__x__add"
    assert name_in("", "add") == "add"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**PATCH, "name": "a b"}], "tools[0].name"),
        ([{**SERVER, "name": "a b"}], "tools[0].name"),
        ([{**SERVER, "tools": None}], "tools[0].tools"),
        ([{**SERVER, "tools": [SERVER]}], "tools[0].tools[0].type"),
        ([{**SERVER, "tools": [ADD] * (MAX_TOOLS // 2)}, ADD] * 2, "tools"),
        ([{**SERVER, "tools": [ADD] * (MAX_TOOLS + 1)}], "tools[0].tools"),
        ([{**PATCH, "format": {"type": 3}}], "tools[0].format.type"),
        ([{"type": "function", "function": ADD}], "tools[0].function"),  # as chats have it
    ],
)
def test_what_cannot_be_is_named(tools: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(*tools)
    assert (caught.value.status, caught.value.param) == (400, param)
