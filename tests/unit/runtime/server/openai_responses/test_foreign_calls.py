"""Calls of others' tools in a history become calls of functions."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.openai_responses.foreign_calls import (
    read_foreign_call,
    read_result,
    result_id,
)

RAN = {"id": "x", "status": "completed"}
LOGS = [{"type": "logs", "logs": "4"}, {"type": "image", "url": "data:image/png;base64,aGk="}]
FILES = [{"file_id": "f", "filename": "a.md", "text": "All.", "score": None}]


@pytest.mark.parametrize(
    ("kind", "item", "name", "arguments", "result"),
    [
        ("code_interpreter_call", {**RAN, "code": "2+2", "container_id": "c", "outputs": LOGS},
         "code_interpreter", {"code": "2+2"}, ["4"]),
        ("file_search_call", {**RAN, "queries": ["a"], "results": FILES}, "file_search",
         {"queries": ["a"]}, ['{"file_id": "f", "filename": "a.md", "text": "All."}']),
        ("mcp_call", {**RAN, "name": "f", "server_label": "s", "arguments": '{"a": 1}',
         "output": ""}, "s__f", {"a": 1}, []),
        ("mcp_call", {**RAN, "name": "f", "arguments": "{}", "error": {"message": "no"}}, "f", {},
         ["Error:", "no"]),
        ("local_shell_call", {"id": "x", "action": {"command": ["ls"], "user": None}},
         "local_shell", {"command": ["ls"]}, None),
        ("shell_call", {"id": "i", "call_id": "x", "action": {"commands": ["ls"]}}, "shell",
         {"commands": ["ls"]}, None),
        ("apply_patch_call", {"call_id": "x", "operation": {"type": "delete_file", "path": "a"}},
         "apply_patch", {"type": "delete_file", "path": "a"}, None),
        ("computer_call", {"id": "i", "call_id": "x", "action": {"type": "click", "x": 1},
         "pending_safety_checks": []}, "computer", {"type": "click", "x": 1}, None),
        ("tool_search_call", {"call_id": "x", "execution": "client", "arguments": {"q": "a"}},
         "tool_search", {"q": "a"}, None),
    ],
)  # fmt: skip
def test_a_call_has_its_tool_s_name_its_arguments_and_its_result(
    kind: str, item: Any, name: str, arguments: Any, result: Any
) -> None:
    foreign = read_foreign_call(Fields({"type": kind, **item}), kind)
    assert foreign is not None
    call, found = foreign
    assert (call.name, call.arguments, call.call_id) == (name, arguments, "x")
    assert found == result


def test_a_call_that_nobody_answers_says_nothing() -> None:
    searched = {"id": "x", "action": {"query": "a"}}
    assert read_foreign_call(Fields(searched), "web_search_call") is None


def test_a_result_without_an_id_belongs_to_its_item() -> None:
    item = Fields({"code": "1", "outputs": []}, "input[3]")
    foreign = read_foreign_call(item, "code_interpreter_call")
    assert foreign is not None
    assert foreign[0].call_id == "input[3].id"


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        ({"output": "a"}, ["a"]),
        ({"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
         ['{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}']),
        ({"output": [{"type": "input_text", "text": "a"}, 5]}, ["a", '{"output": 5}']),
        ({"tools": [{"type": "function", "name": "f"}]}, ["f"]),
        ({"status": "completed"}, None),
    ],
)  # fmt: skip
def test_results_are_read_as_text(item: Any, parts: Any) -> None:
    assert read_result(Fields(item)) == parts


def test_a_screen_is_a_picture() -> None:
    seen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGk="}
    found = read_result(Fields({"output": seen}))
    assert found is not None
    (picture,) = found
    assert not isinstance(picture, str)
    assert picture.text == seen["image_url"]
    with pytest.raises(ApiError, match="no files are kept"):
        read_result(Fields({"output": {**seen, "file_id": "f"}}))


def test_shells_answer_by_their_call_s_id() -> None:
    assert result_id(Fields({"id": "a"})) == "a"
    assert result_id(Fields({"id": "a", "call_id": "b"})) == "b"


def test_a_name_that_no_call_can_hold_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        read_foreign_call(Fields({"call_id": "x"}), "a b_call")
    assert caught.value.status == 400
