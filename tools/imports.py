"""Imports of the source files, read with `ast`: for the layering tests and the picture."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE_FOLDERS = ("gemma4_compile", "model_spec", "quantization", "targets")
PACKAGE = "gemma4_compile"


def module_name(path: Path) -> str:
    """`targets/webgpu.py` -> `gemma4_compile.targets.webgpu`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path
    for folder in SOURCE_FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
"""Source files by the names of their modules."""


def part_of(module: str) -> str:
    """The part of the project a module belongs to: the word after `gemma4_compile.`."""
    words = module.split(".")
    return words[1] if len(words) > 1 else "__init__"


@cache
def parsed(module: str) -> ast.Module:
    """The syntax tree of a module's file, which nobody changes."""
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> tuple[tuple[int, str], ...]:
    """Those of a module's file, as `imports` gives them."""
    return tuple(imports(parsed(module)))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, module) of each import of ours; `from package import name` may name a module, too."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in inner if name in SOURCES] or [node.module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield node.lineno, name


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements, those within others behind them; their expressions are most of a tree."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, name, ()):
                waiting.append(child)
                if isinstance(child, ast.stmt):  # a handler or a case holds some
                    yield child
