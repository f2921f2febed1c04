"""Server-sent events: JSON in one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping

_ENCODER = json.JSONEncoder(ensure_ascii=False)
# Clients that part a stream by Unicode's line ends would cut an event at these; JSON escapes the
# others, below U+0020, by itself.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def data_event(content: Mapping[str, object]) -> str:
    """An event without a name."""
    return f"data: {one_line(content)}\n\n"


def named_event(name: str, content: Mapping[str, object]) -> str:
    """An event that says its kind."""
    return f"event: {name}\ndata: {one_line(content)}\n\n"


def one_line(content: Mapping[str, object]) -> str:
    """JSON without a line end of any kind."""
    line = _ENCODER.encode(content)
    return line if line.isascii() else line.translate(_LINE_ENDS)
