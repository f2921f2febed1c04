"""Decoders of JSON, by the length of a text."""

from __future__ import annotations

import json

import pytest

from gemma4_compile.runtime.server.json_decoders import SMALL_BYTES, make_decoder


@pytest.mark.parametrize("length", [1, SMALL_BYTES + 1])
def test_values_are_those_of_python_s_own_parser(length: int) -> None:
    text = '[{"a": {"b": [1, -2.5, 1e400, NaN, true, null, "\\ud83d\\ude42"]}, "a": 100000000000}]'
    assert repr(make_decoder(length).decode(text)) == repr(json.loads(text))
    told = make_decoder(length, lambda name: f"<{name}>").decode("[NaN, -Infinity]")
    assert told == ["<NaN>", "<-Infinity>"]


def test_what_decodes_a_long_text_calls_python_between_its_values() -> None:
    """There other threads may run."""
    calls = [
        getattr(make_decoder(length), name).__class__.__name__
        for length in (1, SMALL_BYTES + 1)
        for name in ("parse_int", "parse_float", "object_hook")
    ]
    assert calls == ["type", "type", "NoneType", *["function"] * 3]
