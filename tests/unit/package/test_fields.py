"""Fields of a package's JSON objects: right ones are returned, damaged ones are named."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.fields import PLAIN_NAME, Fields
from gemma4_compile.system.names import refusal_of_windows

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


@pytest.mark.parametrize(
    "name",
    ["model.so", "params_shard_0.bin", "a", "_x", "auxiliary.bin", "model-null.so", "a..b"],
)
def test_names_that_every_system_takes(name: str) -> None:
    assert PLAIN_NAME.fullmatch(name)
    assert refusal_of_windows(name) is None


@pytest.mark.parametrize(
    "name", ["aux", "AUX.bin", "nul.so", "com1", "lpt9.x", "a.", ".a", "a b", "a:b"]
)
def test_names_that_some_system_refuses(name: str) -> None:
    assert not PLAIN_NAME.fullmatch(name)
