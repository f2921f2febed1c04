"""Arguments of calls that clients send back, whoever read them before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.fields import Fields, Ignored


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": "x"}', {"a": "x"}),
        ('"{\\"a\\": \\"x\\"}"', {"a": "x"}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ('{"a": [1, 2,]}', {"a": [1, 2]}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ('""', {}),
        (None, {}),
        ([], {}),
        ("[]", {}),
    ],
)
def test_what_can_only_be_one_object_is_read(said: Any, meant: Any) -> None:
    assert read_arguments(Fields({"arguments": said}, "calls[0]")) == meant
    assert read_arguments(Fields({"input": said}), "input") == meant


NO_OBJECTS = ["city", "[1]", "5", "{'a': 1, 'a': 2}", '{"a": 1}{"b": 2}']
CUT = ['{"city": "Par', '{"lines": 12', '{"city": "Paris"', '{a:<|"|>Par}', '"{\\"a\\": ']


@pytest.mark.parametrize("said", [*NO_OBJECTS, *CUT])
def test_a_text_that_is_no_object_is_one_argument(said: str) -> None:
    # As Anthropic's documentation and pydantic-ai name it: agents send a cut call back for ever.
    assert read_arguments(Fields({"arguments": said})) == {"INVALID_JSON": said}
    strict = Fields({"arguments": said}, "calls[0]", Ignored(strict=True))
    with pytest.raises(ApiError, match=r"`calls\[0\].arguments`: expected a JSON object") as caught:
        read_arguments(strict)
    assert caught.value.status == 400
    assert "the body" not in caught.value.message


@pytest.mark.parametrize("inner", ['{"a": 1', '"x"'])
def test_of_json_in_a_text_the_inner_text_is_kept(inner: str) -> None:
    said = Fields({"arguments": json.dumps(json.dumps(inner) if inner == '"x"' else inner)})
    assert read_arguments(said) == {"INVALID_JSON": inner}


@pytest.mark.parametrize("said", [5, [1], True, '{"a": "\ud800"}'])
def test_what_is_neither_an_object_nor_text_is_refused_by_name(said: Any) -> None:
    with pytest.raises(ApiError, match=r"`calls\[0\].arguments`: expected a JSON object") as caught:
        read_arguments(Fields({"arguments": said}, "calls[0]"))
    assert caught.value.status == 400
