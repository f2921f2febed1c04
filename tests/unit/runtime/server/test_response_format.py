from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.response_format import ANY_OBJECT, read_schema

SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}


def schema_of(form: Any) -> Any:
    return read_schema(Fields({"response_format": form}))


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, "title": "n"}},
        {"type": "json_schema", "schema": SCHEMA, "name": "n", "strict": True},
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": SCHEMA},
        {"type": "json_schema", "json_schema": {**SCHEMA, "schema": None}},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_object", "schema": json.dumps(SCHEMA)},
        {"type": "json_object", "json_schema": {"schema": SCHEMA}},
        {"type": "json_object", "response_schema": SCHEMA},
        {"type": "json_schema", "responseSchema": json.dumps(SCHEMA)},
        {"type": "json_schema", "json_schema": {"name": "n", "response_schema": SCHEMA}},
    ],
)
def test_a_schema_is_found_where_clients_put_it(form: Any) -> None:
    found = schema_of(form)
    assert {key: value for key, value in found.items() if value is not None} == SCHEMA


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, None),
        ({}, None),
        ([], None),
        ("", None),
        ({"type": "text"}, None),
        ({"type": "text", "schema": {}, "json_schema": None}, None),
        ({"type": "json_object"}, ANY_OBJECT),
        ({"type": "json_object", "schema": None}, ANY_OBJECT),
        ({"type": "json_object", "schema": {}}, {}),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, ANY_OBJECT),
        ({"type": "json_schema", "json_schema": {"name": "n", "mystery": 1}}, ANY_OBJECT),
        ({"type": "json_schema", "json_schema": {"$ref": "#/x"}}, {"$ref": "#/x"}),
    ],
)
def test_a_form_without_a_schema(form: Any, schema: Any) -> None:
    assert schema_of(form) == schema


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "xml"}, ".type"),
        ({"type": "text", "schema": SCHEMA}, ".type"),
        ({"type": "json_schema"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": "{"}, ".json_schema"),
        ({"type": "json_object", "schema": "[1]"}, ".schema"),
        ({"type": "json_object", "schema": 5}, ".schema"),
        ({"type": "json_object", "schema": SCHEMA, "json_schema": {"schema": {}}}, ".schema"),
        ({"type": "json_object", "value": SCHEMA}, ".value"),
        ({"type": "json_object", "jsonSchema": SCHEMA}, ".jsonSchema"),
        ({"type": "json_schema", "json_schema": {"value": SCHEMA}}, ".json_schema.value"),
        ({"type": "json_object", "schema": {}, "response_schema": SCHEMA}, ".response_schema"),
        ({"type": "json_schema", "json_schema": {"parameters": SCHEMA}}, ".json_schema.parameters"),
        (
            {"type": "json_schema", "json_schema": {"json_schema": SCHEMA}},
            ".json_schema.json_schema",
        ),
        ({"type": "json_schema", "json_schema": {"schema": True}}, ".json_schema.schema"),
        ("json_object", ""),
    ],
)
def test_a_form_that_cannot_be_kept_is_refused(form: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        schema_of(form)
    assert caught.value.param == f"response_format{param}"
