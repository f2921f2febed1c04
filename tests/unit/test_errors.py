"""Messages of errors can be printed anywhere, whatever names are in them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from gemma4_compile import errors
from gemma4_compile.errors import MAX_MESSAGE, CheckpointError, Gemma4CompileError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain `text`, 5 µm, ≤ 3\n\tnext", "plain `text`, 5 µm, ≤ 3\n\tnext"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x7f\x9b", r"a\rb\x7f\x9b"),
        ("\u202eabc", r"\u202eabc"),
        ("\ud800", r"\ud800"),
        ("\0", r"\x00"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    error = CheckpointError(text, hint=text)
    assert (str(error), error.hint) == (shown, shown)
    str(error).encode("utf-8")


def test_long_text_keeps_its_ends() -> None:
    text = printable("begin" + "x" * 10**6 + "end")
    assert len(text) < MAX_MESSAGE + 10
    assert text.startswith("begin")
    assert text.endswith("end")


ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("gemma4_compile/runtime", "gemma4_compile/verification")
    for path in (ROOT / folder).rglob("*.py")
)
# Wrong usage has a hint without being given one; of the others, what no command lets out.
NO_HINT = {"UsageError", "ApiError", "GrammarError", "ToolCallError"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_who_runs_a_package_gets_a_hint(path: Path) -> None:
    """At the place of the error: `run_command` could only ask for a report of it."""
    known = _names_of_errors() - NO_HINT
    assert {"ArtifactError", "AddressError"} < known
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            given = {keyword.arg for keyword in node.keywords}
            assert "hint" in given, f"{path.name}:{node.lineno}: no hint"


@cache
def _names_of_errors() -> set[str]:
    """Of the project's own: those of `errors`, and those that the sources derive from its base."""
    names = {name for name in vars(errors) if name.endswith("Error")}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                names |= {node.name} if Gemma4CompileError.__name__ in bases else set()
    return names


def test_a_hint_may_be_missing() -> None:
    assert CheckpointError("x").hint is None
