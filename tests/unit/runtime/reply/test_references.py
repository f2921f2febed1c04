"""References within a JSON schema."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.reply.references import referred

ROOT = {"$defs": {"a b": {"type": "string"}, "c/d~e": 5, "": 6}, "anyOf": [{"x": 1}, None]}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("#", ROOT),
        ("#/$defs/a%20b", {"type": "string"}),
        ("#/$defs/a b/type", "string"),
        ("#/$defs/c~1d~0e", 5),
        ("#/anyOf/0/x", 1),
        ("#/anyOf/1", None),
    ],
)
def test_a_reference_leads_to_a_part(reference: str, expected: object) -> None:
    assert referred(ROOT, reference) == expected


@pytest.mark.parametrize(
    "reference",
    [
        *("Guest", "other.json#/$defs", "#/nothing", "#/anyOf/2", "#/anyOf/-1", "#/anyOf/x"),
        *("#/anyOf/1/x", "#/$defs/c~1d~0e/x", f"#/anyOf/{'9' * 5000}"),
        *(None, 5, ["#"]),
    ],
)
def test_what_is_not_there_is_an_error(reference: object) -> None:
    with pytest.raises(LookupError):
        referred(ROOT, reference)
