"""Reads the imports of gemma4-web, those of types too, and holds them against its rooms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "web" / "src"

# A room imports from the layers above its own in this list, never from its own or below.
ROOMS = (
    ("kept.ts", "stats.ts"),
    ("gpu",),
    ("library", "selftest"),
    ("replay", "choose", "profile"),
    ("speculative",),
    ("driver",),
    ("choose.ts",),
    ("fast.ts",),
)

# `from "./a"` of an import or export, `import "./a"`, `import("./a")` also as a type.
IMPORT = re.compile(r"""\b(?:from|import)\b\s*\(?\s*(["'])(\.[^"'\n]+)\1""")

Graph = Mapping[str, frozenset[str]]


def imported(text: str, name: str, known: frozenset[str]) -> frozenset[str]:
    """Return the files that the file `name` imports, by paths below the source folder."""
    found = set()
    for match in IMPORT.finditer(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)):
        parts: list[str] = []
        for part in (PurePosixPath(name).parent / match[2]).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        target = "/".join(parts)
        assert f"{target}.ts" in known, f"{name} imports {match[2]}, which is no file of its own"
        found.add(f"{target}.ts")
    return frozenset(found)


def graph_of(texts: Mapping[str, str]) -> Graph:
    known = frozenset(texts)
    return {name: imported(text, name, known) for name, text in texts.items()}


def circle_in(graph: Graph) -> tuple[str, ...]:
    """Return the files of a circle of imports in their order; none: there is none."""
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> tuple[str, ...]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return ()
        for other in sorted(graph[name]):
            if circle := follow(other, (*way, name)):
                return circle
        done.add(name)
        return ()

    return next((circle for name in sorted(graph) if (circle := follow(name, ()))), ())


def room_of(name: str) -> str:
    return name.partition("/")[0]


def upward(graph: Graph) -> list[str]:
    """Imports from a room that is not above the importing file's."""
    rank = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}
    return [
        f"{name} imports {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if (own := room_of(name)) != (room := room_of(other)) and rank[room] >= rank[own]
    ]


@pytest.fixture(scope="module")
def graph() -> Graph:
    files = sorted(SOURCE.rglob("*.ts"))
    return graph_of(
        {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in files}
    )


def test_no_files_import_each_other(graph: Graph) -> None:
    circle = circle_in(graph)
    assert not circle, "a circle: " + " -> ".join(circle)


def test_rooms_import_from_those_above_them(graph: Graph) -> None:
    assert {room_of(name) for name in graph} == {room for rooms in ROOMS for room in rooms}
    assert not upward(graph), "\n".join(upward(graph))


@pytest.mark.parametrize(
    "line",
    [
        'import { b } from "./b";',
        'import type { B } from "./b";',
        'import {\n  type B,\n} from "./b";',
        'export type { B } from "./b";',
        'export * from "./b";',
        'import "./b";',
        'type B = import("./b").B;',
        'const b = await import("./b");',
    ],
)
def test_a_circle_is_found_however_it_is_imported(line: str) -> None:
    texts = {"gpu/a.ts": line, "gpu/b.ts": 'import { c } from "../c";', "c.ts": ""}
    assert circle_in(graph_of(texts)) == ()
    assert circle_in(graph_of({**texts, "c.ts": 'import type { A } from "./gpu/a";'})) == (
        "c.ts",
        "gpu/a.ts",
        "gpu/b.ts",
    )


def test_an_import_from_below_is_found() -> None:
    texts = {
        "gpu/a.ts": 'import type { B } from "../library/b";',
        "library/b.ts": 'import { c } from "../selftest/c";',
        "selftest/c.ts": '// import "../fast"\nimport { d } from "../gpu/d";',
        "gpu/d.ts": "",
    }
    assert upward(graph_of({**texts, "fast.ts": ""})) == [
        "gpu/a.ts imports library/b.ts",
        "library/b.ts imports selftest/c.ts",
    ]
