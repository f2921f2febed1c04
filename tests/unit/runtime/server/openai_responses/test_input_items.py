"""Pages of the items that a response was made of."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.openai_responses.input_items import page_of, with_ids

NUMBERED = [{"id": f"msg_{i}", "role": "user", "content": str(i)} for i in range(25)]
NAMES = [each["id"] for each in NUMBERED]


def names(page: dict[str, Any]) -> list[str]:
    found = [each["id"] for each in page["data"]]
    assert (page["first_id"], page["last_id"]) == ((found or [None])[0], (found or [None])[-1])
    return found


@pytest.mark.parametrize(
    ("query", "expected", "more"),
    [
        ({}, NAMES[:4:-1], True),
        ({"order": "asc"}, NAMES[:20], True),
        ({"order": "asc", "limit": "100"}, NAMES, False),
        ({"order": "asc", "limit": "25"}, NAMES, False),
        ({"order": "asc", "limit": "2", "after": "msg_3"}, NAMES[4:6], True),
        ({"limit": "2", "after": "msg_3"}, ["msg_2", "msg_1"], True),
        ({"limit": "3", "after": "msg_3"}, ["msg_2", "msg_1", "msg_0"], False),
        ({"after": "msg_0"}, [], False),
        ({"order": "asc", "limit": "2", "before": "msg_3"}, ["msg_1", "msg_2"], True),
        ({"order": "asc", "after": "msg_1", "before": "msg_4"}, ["msg_2", "msg_3"], False),
    ],
)
def test_a_page_is_where_it_was_asked_for(
    query: dict[str, str], expected: list[str], more: bool
) -> None:
    page: dict[str, Any] = page_of(NUMBERED, query)
    assert (names(page), page["has_more"], page["object"]) == (expected, more, "list")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("limit", value) for value in ("0", "101", "-1", "", "x", "1.5", "\u0661", "9" * 5000)),
        *(("order", value) for value in ("", "up", "DESC")),
        *((name, "msg_99") for name in ("after", "before")),
    ],
)
def test_what_says_nothing_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ApiError) as caught:
        page_of(NUMBERED, {name: value})
    assert (caught.value.status, caught.value.param) == (400, name)
    assert len(caught.value.message) < 200


CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f"}
TEXT = {"type": "text", "text": "a"}
ITEMS: dict[str, dict[str, Any]] = {
    "text": {"role": "user", "content": "a"},
    "parts": {"role": "developer", "content": [TEXT]},
    "picture": {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
    "picture as of chats": {
        "role": "user",
        "content": [{"type": "input_image", "image_url": {"url": "data:,"}}],
    },
    "reply": {"role": "assistant", "content": "a"},
    "reply in parts": {"type": "message", "role": "assistant", "content": [TEXT]},
    "call": {**CALL, "arguments": "{}"},
    "call with an object": {**CALL, "arguments": {"a": 1}},
    "custom call": {**CALL, "type": "custom_tool_call", "input": "a"},
    "result": {"type": "function_call_output", "call_id": "c", "output": "a"},
    "result in parts": {"type": "function_call_output", "call_id": "c", "output": [TEXT]},
    "custom result": {"type": "custom_tool_call_output", "call_id": "c", "output": "a"},
    "reasoning": {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]},
}


@pytest.mark.parametrize("how", ITEMS)
def test_each_item_has_what_typed_clients_count_on(how: str) -> None:
    (kept,) = with_ids([ITEMS[how]])
    (item,) = page_of([kept], {})["data"]
    TypeAdapter(ResponseItem).validate_python(item)
    assert item["id"]
    kept_fields = set(ITEMS[how]) - {"arguments", "content", "output"}
    assert {name: item[name] for name in kept_fields} == {n: ITEMS[how][n] for n in kept_fields}


def test_an_item_that_has_an_id_keeps_it() -> None:
    assert with_ids(NUMBERED) == NUMBERED
    first, second = with_ids([{"role": "user"}, {"role": "user"}])
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["id"] != second["id"]
