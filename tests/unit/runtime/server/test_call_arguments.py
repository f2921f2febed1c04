"""Arguments of calls that clients send back, whoever read them before."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.fields import Fields


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
    ],
)
def test_what_can_only_be_one_object_is_read(said: Any, meant: Any) -> None:
    assert read_arguments(Fields({"arguments": said}, "calls[0]")) == meant
    assert read_arguments(Fields({"input": said}), "input") == meant


OTHERS = [
    "city",
    "[1]",
    "5",
    5,
    [1],
    True,
    "{'a': 1, 'a': 2}",
    '{"a": "\ud800"}',
    '{"a": 1}{"b": 2}',
]
CUT = ['{"city": "Par', '{"lines": 12', '{"city": "Paris"', '{a:<|"|>Par}']


@pytest.mark.parametrize("said", [*OTHERS, *CUT])
def test_what_is_no_object_is_refused_by_name(said: Any) -> None:
    with pytest.raises(ApiError, match=r"`calls\[0\].arguments`: expected a JSON object") as caught:
        read_arguments(Fields({"arguments": said}, "calls[0]"))
    assert caught.value.status == 400
    assert "the body" not in caught.value.message
