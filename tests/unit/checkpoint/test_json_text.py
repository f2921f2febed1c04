"""JSON that is taken, and what is refused."""

from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.json_text import MAX_DIGITS, MAX_VALUES, parse_object


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
        ('{"a": 1}'.encode("utf-16"), "codec"),
        ('{"a": 1}'.encode("utf-16-le"), "Expecting"),
        ('{"a": 1}'.encode("utf-32-le"), "Expecting"),
        ('{"a": 1}'.encode("utf-8-sig"), "BOM"),
        (r'{"a": ["\ud800"]}', "surrogates"),
        (r'{"a": {"\uDFFF": 1}}', "surrogates"),
        ('{"a": [' + "0," * MAX_VALUES + "0]}", "more than 2000000 values"),
        ('{"a": [' + "{}," * (MAX_VALUES // 2) + "0]}", "more than 2000000 values"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_object(text)


def test_pairs_of_surrogates_are_text() -> None:
    assert parse_object(r'{"a": "\ud83d\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_only_finite_numbers(number: str) -> None:
    parse_object(f'{{"a": {number}}}')
    with pytest.raises(ValueError, match="number"):
        parse_object(f'{{"a": {number}}}', finite=True)
