"""OpenAI's custom tools, which take a text: each is a function of that argument to the model."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.types import JsonObject

INPUT = "input"
"""The argument that is the text."""


def custom_parameters() -> JsonObject:
    """The schema of the arguments."""
    return {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}


def custom_arguments(text: str) -> dict[str, object]:
    """The arguments of a call of a custom tool."""
    return {INPUT: text}


def custom_text(call: ToolCall) -> str:
    """The text of such a call, whatever the model made of it."""
    text = call.arguments.get(INPUT)
    return text if isinstance(text, str) else call.arguments_json()


def custom_description(tool: Fields) -> str:
    """What the model is told of a tool: its grammar, too, by which it is not bound."""
    lines = [tool.get("description", str, "")]
    form = tool.inner("format", tool.get("format", dict, {}))
    form.skip_unknown({"definition", "grammar", "syntax", "type"}, {})
    if form.get("type", str, "text") != "text":
        # Chats have the grammar in an object of its own, responses beside the type.
        inner = form.raw("grammar")
        grammar = form.inner("grammar", inner) if isinstance(inner, Mapping) else form
        form.ignored.add(grammar.name("definition"))
        lines += [f"Grammar of `{INPUT}`:", grammar.get("definition", str, "")]
    return "\n".join(line for line in lines if line)
