"""`propertyNames` of a schema in words that `llguidance` knows.

Records of zod and dictionaries of pydantic have it: `{"type": "string"}`, which says nothing of a
name in JSON, the values of an enum, or a pattern.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.grammar.call_schema_merge import constraints
from gemma4_compile.runtime.reply.references import referred

_KEY = "propertyNames"
_BESIDE = ("properties", "patternProperties")
_MAX_CHAIN = 16


def without_property_names(
    schema: Mapping[str, object], root: Mapping[str, object]
) -> Mapping[str, object]:
    """A schema of an object with its names as properties or a pattern, where that is the same.

    Parameters
    ----------
    root : the schema into which references point
    """
    if _KEY not in schema:
        return schema
    names = _target(schema[_KEY], root)
    if names is None:
        return schema
    rest = {key: value for key, value in schema.items() if key != _KEY}
    if not names:
        return rest
    said, closed = rest.get("additionalProperties"), {"additionalProperties": False}
    value = True if said is None else said  # null is as if it were not there
    if any(rest.get(key) for key in _BESIDE):
        return schema
    if len(names) == 1 and isinstance(pattern := names.get("pattern"), str):
        return {**rest, "patternProperties": {pattern: value}, **closed}
    listed = names.get("enum", [names.get("const")])
    if len(names) == 1 and isinstance(listed, list) and {"enum", "const"} & set(names):
        properties = {name: value for name in listed if isinstance(name, str)}
        return {**rest, "properties": properties, **closed}
    return schema


def _target(names: object, root: Mapping[str, object]) -> dict[str, object] | None:
    """What is asked of a name, besides that it is a text; None if that is not certain."""
    for _ in range(_MAX_CHAIN):
        if names is True:
            return {}
        if not isinstance(names, Mapping):
            return None
        asked = constraints(names)
        pointer = asked.get("$ref")
        if pointer is None:
            kind = asked.pop("type", "string")
            return asked if isinstance(kind, str) and kind.lower() == "string" else None
        if len(asked) > 1 or not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        try:
            names = referred(root, pointer)
        except LookupError:
            return None
    return None
