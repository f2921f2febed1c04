"""Requests that were written to do harm, over real connections: a 4xx, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

TEMPLATE = (Path(__file__).parents[3] / "tool_template.jinja").read_text("utf-8")
QUESTION = [{"role": "user", "content": "Weather in Rome?"}]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("yes")), TEMPLATE) as live:
        yield live


def ask(live: Live, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"messages": QUESTION, **fields}
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    return status, json.loads(answer)


def in_schema(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"response_format": form, "max_tokens": 4}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": [-1e308]},
        {"type": "integer", "multipleOf": 2147483648},
        {"$ref": "#"},
        {"const": 10**400},
        {"const": "x" * 1_000_000},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_would_do_harm_is_a_bad_request(live: Live, schema: Any) -> None:
    status, answer = ask(live, **in_schema(schema))
    assert status == 400
    assert answer["error"]["param"] == "response_format"
    assert ask(live, **in_schema({"type": "boolean"}))[0] == 200
