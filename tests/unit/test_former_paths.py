"""Import paths that have moved keep working, and say where to."""

import importlib
import sys

import pytest

from tools.imports import SOURCES, imports_of

MOVED = {
    "gemma4_compile.chat_template": "gemma4_compile.template.chat_template",
    "gemma4_compile.runtime.tool_calls": "gemma4_compile.runtime.reply.tool_calls",
}


@pytest.mark.parametrize(("former", "present"), MOVED.items())
def test_a_former_path_gives_the_same_objects_and_names_the_new_one(
    former: str, present: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, former, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{former} has moved: import {present}$") as told:
        old = importlib.import_module(former)
    assert len(told) == 1
    new = importlib.import_module(present)
    assert {name: getattr(new, name) for name in old.__all__} == {
        name: getattr(old, name) for name in old.__all__
    }
    public = {
        name
        for name, value in vars(new).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == present
    }
    assert set(getattr(new, "__all__", public)) == set(old.__all__)  # some of its parts' files


def test_the_product_does_not_import_former_paths() -> None:
    assert MOVED.keys() <= SOURCES.keys()
    assert not [name for name in SOURCES for _, used in imports_of(name) if used in MOVED]
