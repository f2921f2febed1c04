"""Text has one encoding and one end of lines: those of Windows are others, and vary by country.

ruff's PLW1514 finds part of it, where it can tell that something is a path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("gemma4_compile", "model_spec", "quantization", "targets", "examples")
OWN = {"", "files"}  # functions of `package.files`, which writes bytes
MODE = re.compile(r"[rwax][bt+]*")


def sources() -> list[Path]:
    return sorted(
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
    )


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a source file that leave a choice to the system, and what they leave."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, fault) for fault in _faults(node))


def _faults(call: ast.Call) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    of, name = "", ""
    if isinstance(call.func, ast.Attribute):
        name = call.func.attr
        of = call.func.value.id if isinstance(call.func.value, ast.Name) else "an expression"
    elif isinstance(call.func, ast.Name):
        name = call.func.id
    if name == "read_text" and not call.args and "encoding" not in given:
        yield "encoding"
    if name == "write_text" and of not in OWN:
        if len(call.args) < 2 and "encoding" not in given:
            yield "encoding"
        if "newline" not in given:
            yield "newline"
    if (mode := _mode(call, of, name, given)) is not None and "b" not in mode:
        if "encoding" not in given:
            yield "encoding"
        if set(mode) & set("wax+") and "newline" not in given:
            yield "newline"
    is_text = isinstance(value := given.get("text"), ast.Constant) and value.value is True
    if is_text and "encoding" not in given:
        yield "encoding"


def _mode(call: ast.Call, of: str, name: str, given: Mapping[str | None, ast.expr]) -> str | None:
    """The mode that a call opens a file in; None for other calls."""
    if name not in ("open", "fdopen"):
        return None
    place = 0 if of and name == "open" else 1
    mode = given.get("mode", call.args[place] if len(call.args) > place else None)
    if mode is None:
        return "r" if not of or name == "fdopen" or not call.args else None
    found = mode.value if isinstance(mode, ast.Constant) else None
    return found if isinstance(found, str) and MODE.fullmatch(found) else None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("path.read_text()", ["encoding"]),
        ("path.read_text('utf-8')", []),
        ("path.write_text('a')", ["encoding", "newline"]),
        ("path.write_text('a', 'utf-8', newline='\\n')", []),
        ("files.write_text(path, 'a')", []),
        ("open('a')", ["encoding"]),
        ("open('a', 'rb')", []),
        ("path.open('w', encoding='utf-8')", ["newline"]),
        ("path.open('wb')", []),
        ("path.open()", ["encoding"]),
        ("Package.open(directory)", []),
        ("os.fdopen(descriptor, 'w')", ["encoding", "newline"]),
        ("subprocess.run(command, text=True)", ["encoding"]),
        ("subprocess.run(command, text=True, encoding='utf-8')", []),
    ],
)
def test_faults_are_found(line: str, expected: list[str]) -> None:
    assert [fault for _, fault in faults(line)] == expected


def test_no_file_or_process_has_the_systems_encoding_or_ends_of_lines() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sources()
        for line, fault in faults(path.read_text("utf-8"))
    ]
    assert found == []
