"""Draw the packages and their imports as the Mermaid picture in docs/architecture.md.

`python -m tools.draw_packages` writes it; `--check` only compares, and exits with 1 if it is old.
An arrow means "imports". One that follows from others is left out, so that the picture can be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from tools.imports import PACKAGE, ROOT, SOURCES, imports_of, part_of

PAGE = ROOT / "docs/architecture.md"
BEGIN = "<!-- packages: written by `make docs` from the imports -->"
END = "<!-- end of packages -->"
OUTSIDE = "runtime"
"""It is no stage of the compiler: its arrows are dotted and name the single modules it imports."""

Graph = Mapping[str, Set[str]]


def folders() -> set[str]:
    """Parts that are folders, not single files."""
    return {part_of(name) for name, path in SOURCES.items() if path.name == "__init__.py"} - {
        "__init__"
    }


def read_arrows() -> dict[str, set[str]]:
    """Modules of other parts that each part imports."""
    arrows: dict[str, set[str]] = {part_of(name): set() for name in SOURCES}
    for name in SOURCES:
        found = {imported for _, imported in imports_of(name)}
        arrows[part_of(name)] |= {module for module in found if part_of(module) != part_of(name)}
    return arrows


def reachable(graph: Graph, start: str) -> set[str]:
    """Parts that `start` imports, itself or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph.get(waiting.pop(), set()) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def needed(graph: Graph) -> dict[str, set[str]]:
    """The arrows that do not follow from others, of a graph without cycles."""
    for name in graph:
        if name in reachable(graph, name):
            raise ValueError(f"{name} imports itself through other parts")
    return {
        name: {
            other
            for other in others
            if not any(other in reachable(graph, third) for third in others - {other})
        }
        for name, others in graph.items()
    }


def stages(graph: Graph) -> set[str]:
    """Parts to draw: every folder, and the single files that import two folders or more."""
    known = folders()
    return known | {name for name, others in graph.items() if len(others & known) >= 2}


def lines(modules: Mapping[str, Set[str]]) -> Iterator[str]:
    """Lines of the picture from the modules that each part imports."""
    graph = {name: {part_of(other) for other in found} for name, found in modules.items()}
    drawn = stages(graph) & graph.keys()
    inside = {name: graph[name] & drawn - {OUTSIDE} for name in drawn - {OUTSIDE}}
    yield "flowchart TD"
    for name in sorted(drawn):
        yield f"  {name}" if name in folders() else f"  {name}([{name}.py])"
    for name, others in sorted(needed(inside).items()):
        others = others | (graph[name] & {OUTSIDE})
        yield from (f"  {name} --> {other}" for other in sorted(others))
    for other in sorted(graph[OUTSIDE] & drawn):
        yield f"  {OUTSIDE} -.->{label(modules[OUTSIDE], other)} {other}"


def label(imported: Set[str], folder: str) -> str:
    """The modules of a folder that are imported, in Mermaid's form; nothing if all are."""
    whole = {name for name in SOURCES if part_of(name) == folder} - {f"{PACKAGE}.{folder}"}
    some = {name for name in imported if part_of(name) == folder} & whole
    return "" if some == whole else f"|{', '.join(sorted(n.split('.')[-1] for n in some))}|"


def picture() -> str:
    """The block of the page, from its first marker to its last."""
    return "\n".join([BEGIN, "```mermaid", *lines(read_arrows()), "```", END])


def with_picture(page: str) -> str:
    """The page with the picture as the sources have it now."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}")
    return before + picture() + after


def main(arguments: list[str], page: Path = PAGE) -> int:
    """Write the picture, or with `--check` compare it; return the exit status."""
    old = page.read_text(encoding="utf-8")
    new = with_picture(old)
    if "--check" not in arguments:
        page.write_text(new, encoding="utf-8")
    elif new != old:
        print(f"error: the picture in {page.name} is old", file=sys.stderr)
        print("hint: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
