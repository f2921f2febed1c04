"""Arguments of a call as its declaration has them.

A model that leaves the quotation marks out writes ``zip:90210``, which alone is a number. Where the
declaration says that it is a text, it is that one, with the digits that were written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gemma4_compile.runtime.reply.tool_calls import ToolCall


def as_declared(call: ToolCall, tools: Sequence[Mapping[str, object]]) -> ToolCall:
    """The call, its numbers texts where its tool's schema takes texts and no numbers."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == call.name:
            arguments = _value(call.arguments, function.get("parameters"))
            assert isinstance(arguments, Mapping), "an object stays one"
            return replace(call, arguments=arguments)
    return call


def _value(value: object, schema: object) -> object:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        declared = properties if isinstance(properties, Mapping) else {}
        return {name: _value(inner, declared.get(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, schema.get("items")) for inner in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number and _takes_texts_alone(schema) else value


def _takes_texts_alone(schema: Mapping[str, object]) -> bool:
    """Return whether a schema takes texts and perhaps null; not so where it refers to others."""
    kinds, choices = schema.get("type"), schema.get("anyOf")
    if kinds is None and isinstance(choices, list):
        kinds = [each.get("type") if isinstance(each, Mapping) else None for each in choices]
    return kinds == "string" or (
        isinstance(kinds, list)
        and "string" in kinds
        and all(k in ("string", "null") for k in kinds)
    )
