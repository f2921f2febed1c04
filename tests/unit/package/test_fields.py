"""Fields of a package's JSON objects: right ones are returned, damaged ones are named."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.fields import Fields

READ = Fields({"text": "a", "size": 3, "yes": True, "none": None, "zero": 0}, "x.json")


def test_fields_are_read() -> None:
    assert (READ.get("text", str), READ.size("size"), READ.flag("yes")) == ("a", 3, True)
    assert READ.optional("text", str) == "a"
    assert (READ.optional("none", str), READ.optional("missing", int)) == (None, None)
    assert READ.flag("missing") is False


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("size", lambda: READ.get("size", str)),
        ("yes", lambda: READ.get("yes", int)),
        ("missing", lambda: READ.get("missing", str)),
        ("size", lambda: READ.optional("size", str)),
        ("size", lambda: READ.flag("size")),
        ("none", lambda: READ.flag("none")),
        ("zero", lambda: READ.size("zero")),
        ("records", lambda: Fields(3, "x.json")),
    ],
)
def test_damage_names_file_and_field(name: str, call: object) -> None:
    assert callable(call)
    with pytest.raises(ArtifactError, match=rf"`x\.json`: field `{name}` is damaged"):
        call()
