"""Declarations of functions among tools of others."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.foreign_tools import declared_tools, in_words

OWN = {"type": "function", "name": "f"}
UNTYPED = {"name": "g"}
SEARCH = {"type": "web_search", "name": "search"}


def names(*entries: object, strict: bool = False) -> tuple[list[object], str | None]:
    fields = Fields({}, ignored=Ignored(strict=strict))
    tools = declared_tools(fields, entries, {"function"}, "only functions are served")
    return [tool.raw("name") for tool in tools], fields.ignored.note()


def test_others_are_left_out_and_counted_by_type() -> None:
    kept, note = names(SEARCH, OWN, SEARCH, UNTYPED)
    assert kept == ["f", "g"]
    assert note == "ignored, as they mean nothing here: `tools[] of type web_search` (2)"
    assert names() == ([], None)
    assert names(OWN) == (["f"], None)


@pytest.mark.parametrize(
    ("entries", "strict", "param"),
    [
        ((SEARCH, SEARCH), False, "tools[0].type"),
        ((OWN, SEARCH), True, "tools[1].type"),
        ((OWN, {"type": "functoin", "parameters": {"type": "object"}}), False, "tools[1].type"),
        ((OWN, {"type": 3}), False, "tools[1].type"),
        ((OWN, "f"), False, "tools[1]"),
    ],
)
def test_what_cannot_be_left_out_is_named(
    entries: tuple[object, ...], strict: bool, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        names(*entries, strict=strict)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"type": "logs", "logs": "4"}, "4"),
        ({"error_code": "unavailable"}, "unavailable"),
        ({"title": "t", "url": "u", "encrypted_content": "Zm9v", "page_age": None},
         '{"title": "t", "url": "u"}'),
        ({"type": "image", "url": "data:image/png;base64,aGk="}, ""),
        ({"return_code": 0}, '{"return_code": 0}'),
    ],
)  # fmt: skip
def test_what_a_tool_found_in_words(result: dict[str, object], words: str) -> None:
    assert in_words(result) == words


def test_what_is_nested_too_deeply_is_a_bad_request() -> None:
    nested: object = 1
    for _ in range(900):
        nested = [nested]
    with pytest.raises(ApiError, match="nested") as caught:
        in_words({"found": nested})
    assert caught.value.status == 400
