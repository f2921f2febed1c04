"""Events are one line of JSON each, whatever their texts hold."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.runtime.server.server_sent import data_event, named_event, one_line


@given(st.text())
def test_an_event_is_one_line_by_every_rule_of_line_ends(text: str) -> None:
    line = one_line({"text": text})
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"text": text}


def test_events_with_and_without_a_name() -> None:
    assert data_event({"a": 1}) == 'data: {"a": 1}\n\n'
    assert named_event("ping", {"a": 1}) == 'event: ping\ndata: {"a": 1}\n\n'
