"""JSON that is taken, and what is refused."""

from __future__ import annotations

import pytest

from gemma4_compile.json_text import MAX_DIGITS, parse_object


def test_an_object_is_taken() -> None:
    assert parse_object(b'{"a": [1, 2.5, null, true], "b": {"a": "x"}}') == {
        "a": [1, 2.5, None, True],
        "b": {"a": "x"},
    }
    assert parse_object(f'{{"a": {"9" * MAX_DIGITS}}}') == {"a": 10**MAX_DIGITS - 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "not a JSON object"),
        ('{"a": 1, "a": 2}', "a key appears twice"),
        ('{"x": {"a": 1, "a": 1}}', "a key appears twice"),
        (f'{{"a": {"9" * 1_000_000}}}', "a number of 1000000 digits"),
        ('{"a":' * 100_000, "nested too deeply|Expecting"),
        (b"\xff", "codec"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_object(text)
