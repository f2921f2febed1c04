"""Reading a field: its value, its default, or a 400 that names it."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored


def refusal(read: Any, *args: Any, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(*args, **options)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("values", [[1], "x", 5, None, True])
def test_only_an_object_has_fields(values: object) -> None:
    error = refusal(Fields, values, "tools[0]")
    assert error.message.startswith("tools[0]: expected an object, found")
    assert error.param == "tools[0]"


def test_an_empty_list_in_the_place_of_an_object_is_one() -> None:
    """As programs in PHP write it."""
    fields = Fields({"a": []})
    assert fields.get("a", dict) == {}
    assert fields.inner("a", []).names() == []
    assert refusal(fields.get, "a", str).param == "a"
    assert refusal(Fields, []).message.startswith("the body: expected an object")
    strict = Fields({"a": []}, ignored=Ignored(strict=True))
    for read in (lambda: strict.get("a", dict), lambda: strict.inner("a", [])):
        assert "expected an object" in refusal(read).message


def test_a_body_that_is_no_object_blames_no_field() -> None:
    error = refusal(Fields, [1])
    assert error.message == "the body: expected an object, found a list of 1"
    assert error.param is None


def test_a_null_field_is_absent() -> None:
    fields = Fields({"a": None, "b": 0})
    assert (fields.has("a"), fields.has("b"), fields.has("c")) == (False, True, False)
    assert fields.get("a", int, 7) == 7
    assert fields.get("c", int) is None
    assert fields.get("b", int, 7) == 0
    assert (fields.raw("a"), fields.raw("b")) == (None, 0)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, str, "a string, found 5"),
        ("yes", bool, "true or false, found 'yes'"),
        (1, bool, "true or false, found 1"),
        (True, int, "an integer, found True"),
        (1.0, int, "an integer, found 1.0"),
        ({}, list, "a list, found {}"),
        ([1, 2], dict, "an object, found a list of 2"),
        ({"a": 1}, str, "a string, found an object of 1"),
    ],
)
def test_another_type_is_named_with_the_field(value: object, kind: type, expected: str) -> None:
    error = refusal(Fields({"x": value}, "messages[1]").get, "x", kind)
    assert error.message == f"`messages[1].x`: expected {expected}"
    assert error.param == "messages[1].x"


@pytest.mark.parametrize("value", ["y" * 10_000, 1 << 1000, "\N{GRINNING FACE}" * 100])
def test_a_long_value_is_shown_in_part(value: object) -> None:
    message = refusal(Fields({"x": value}).get, "x", list).message
    assert len(message) < 100
    assert message.endswith("...")


def test_a_needed_field_must_be_there() -> None:
    for values in ({}, {"x": None}):
        error = refusal(Fields(values).need, "x", int)
        assert (error.message, error.code) == ("`x`: is missing", "missing_field")
    assert Fields({"x": False}).need("x", bool) is False


def test_a_field_that_nobody_knows_is_counted() -> None:
    fields = Fields({"a": [{"mood": 1, "x": 2}, {"mood": 2}], "gone": None, "none": {}})
    fields.skip_unknown({"a"}, {})
    for index, entry in enumerate(fields.get("a", list, [])):
        fields.inner(f"a[{index}]", entry).skip_unknown({"x"}, {})
    assert fields.ignored.note() == "ignored, as they mean nothing here: `a[].mood` (2)"
    assert Fields({"a": 1}).ignored.note() is None


def test_a_strict_request_is_refused_for_it() -> None:
    strict = Ignored(strict=True)
    Fields({"a": 1}, ignored=strict).skip_unknown({"a", "b"}, {})
    error = refusal(Fields({"a": 1, "mood": None}, ignored=strict).skip_unknown, {"a"}, {})
    assert (error.param, error.code) == ("mood", "unknown_field")


def test_a_note_is_short_whatever_is_ignored() -> None:
    fields = Fields({f"{index}\x1b{'x' * 10_000}": 1 for index in range(1000)})
    fields.skip_unknown(set(), {})
    note = fields.ignored.note()
    assert note is not None
    assert len(note) < 700
    assert note.endswith(", 992 more")
    assert note.isprintable()


@pytest.mark.parametrize(("value", "is_fine"), [(1, True), (5, True), (0, False), (6, False)])
def test_a_range_holds_its_ends(value: int, is_fine: bool) -> None:
    fields = Fields({"x": value})
    if is_fine:
        assert fields.integer("x", 1, 5, None) == value
    else:
        assert refusal(fields.integer, "x", 1, 5, None).message == (
            f"`x`: expected 1 to 5, found {value}"
        )


def test_an_integer_that_is_absent_has_its_default() -> None:
    assert Fields({}).integer("x", 1, 5, 3) == 3
    assert Fields({"x": None}).integer("x", 1, 5, None) is None


def test_a_sampling_parameter_has_the_range_of_its_name() -> None:
    fields = Fields({"temperature": 0, "top_p": 1.5, "min_p": None})
    assert fields.sampling("temperature", 1.0) == 0
    assert fields.sampling("min_p", 0.25) == 0.25
    error = refusal(fields.sampling, "top_p", 1.0)
    assert error.message == "`top_p`: expected a number from 0 to 1, found 1.5"
    assert (
        "from 0 to 2"
        in refusal(Fields({"temperature": 3}).sampling, "temperature", 1.0, 2.0).message
    )


def test_a_value_that_is_not_served_says_why() -> None:
    fields = Fields({"n": 2, "audio": None, "type": "function"})
    fields.only("audio", (), "only text is served")
    fields.only("type", ("function",), "only functions are served")
    fields.only("absent", (), "never")
    error = refusal(fields.only, "n", (1,), "one reply")
    assert (error.message, error.code) == ("`n`: one reply; found 2", "unsupported_value")
