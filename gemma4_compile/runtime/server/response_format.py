"""The form that a request wants its reply in: OpenAI's, and those of other servers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import parse_json
from gemma4_compile.runtime.server.fields import Fields

ANY_OBJECT: Mapping[str, object] = {"type": "object"}
_FORM = frozenset({"description", "json_schema", "name", "schema", "strict", "type"})
_KEYWORDS = frozenset(
    {
        "$defs",
        "$ref",
        "$schema",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "definitions",
        "enum",
        "items",
        "oneOf",
        "patternProperties",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
_SCHEMAS = {"response_schema": "schema", "responseSchema": "schema"}  # LiteLLM's, Gemini's
_NAMED = frozenset({"description", "name", "schema", "strict"})


def read_schema(fields: Fields) -> Mapping[str, object] | None:
    """The JSON schema of `response_format`, as `schema_of`."""
    return schema_of(fields, "response_format")


def schema_of(fields: Fields, name: str) -> Mapping[str, object] | None:
    """Read the form of a reply: the JSON schema that it must follow, or None.

    The schema is in `json_schema.schema`, as OpenAI has it, in `schema`, as llama.cpp, Together and
    WebLLM have it, in `response_schema`, as LiteLLM has it, or is `json_schema` itself; with type
    `json_object`, too.
    """
    if fields.raw(name) in (None, {}, [], ""):
        return None
    form = fields.inner(name, fields.get(name, dict)).with_synonyms(_SCHEMAS)
    kind = form.need("type", str)
    if kind not in ("text", "json_object", "json_schema"):
        raise form.error("type", "expected text, json_object or json_schema")
    form.skip_unknown(_FORM, asks.RESPONSE_FORMAT)
    _refuse_objects(form, _FORM)
    found = [each for each in (_given(form), _wrapped(form)) if each is not None]
    if kind == "text":
        if any(found):
            raise form.error("type", "a text follows no schema: expected json_schema")
        return None
    if len(found) == 2 and found[0] != found[1]:
        raise form.error("schema", "expected one schema, found another one in `json_schema`")
    if kind == "json_schema" and not found:
        raise form.error("json_schema", "is missing", code="missing_field")
    return found[0] if found else ANY_OBJECT


def _wrapped(form: Fields) -> Mapping[str, object] | None:
    """The schema in `json_schema`; any object where that names none."""
    if not form.has("json_schema"):
        return None
    named = form.inner("json_schema", _parsed(form, "json_schema")).with_synonyms(_SCHEMAS)
    if named.has("schema"):
        named.skip_unknown(_NAMED, asks.RESPONSE_FORMAT)
        return _given(named)
    if not _KEYWORDS.isdisjoint(named.names()):  # without its wrapper
        return _parsed(form, "json_schema")
    named.skip_unknown(_NAMED, asks.RESPONSE_FORMAT)
    _refuse_objects(named, _NAMED)
    return ANY_OBJECT


def _refuse_objects(form: Fields, known: Collection[str]) -> None:
    """Raise ApiError for what may be a schema under a name that nobody is known to use."""
    for field in form.names():
        if field not in known and isinstance(form.raw(field), (dict, list)) and form.raw(field):
            raise form.error(field, asks.ONLY_SCHEMAS, code="unsupported_value")


def _given(form: Fields) -> Mapping[str, object] | None:
    return _parsed(form, "schema") if form.has("schema") else None


def _parsed(form: Fields, field: str) -> Mapping[str, object]:
    """An object, or the text of one."""
    value = form.raw(field)
    if isinstance(value, str):
        try:
            value = parse_json(value.encode())
        except ApiError as error:
            raise form.error(field, f"expected an object or its JSON: {error.message}") from error
    if not isinstance(value, dict):
        raise form.error(field, f"expected an object, found {json.dumps(value)[:60]}")
    return value
