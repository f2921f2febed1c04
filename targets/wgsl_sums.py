"""WGSL of four sums over a subgroup, which TVM's generator prints one after the other.

A block that norms sums four numbers of every thread, in twenty lines. A loop, which no compiler
can write out again, was measured faster: fewer instructions, and all four side by side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

COUNT = 4  # sums of one loop: those of a norm
DISTANCES = ("16", "8", "4", "2", "1")
_STEP = re.compile(
    r"^( *)(\w+)\[0i\] = \(\2\[0i\] \+ subgroupShuffleDown\(\2\[0i\], u32\((\d+)i\)\)\);$"
)
_NAME = re.compile(r"\b\w+\b")
# A compiler that knows how often a loop runs writes it out; there is a workgroup along y at least.
_LOOP = "for (var down : u32 = 16u; down >= min(gridDim.y, 1u); down >>= 1u) {"


def join_sums(text: str) -> str:
    """The text of a kernel with sums in fours.

    Before, for ``a`` to ``d``, each with statements of its own in front::

        a[0i] = (a[0i] + subgroupShuffleDown(a[0i], u32(16i)));
        a[0i] = (a[0i] + subgroupShuffleDown(a[0i], u32(8i)));

    and so on down to 1. After, where the last of these stood::

        for (var down : u32 = 16u; down >= min(gridDim.y, 1u); down >>= 1u) {
          a[0i] = (a[0i] + subgroupShuffleDown(a[0i], down));

    and so on up to ``d``. Each sum has the bits that it had.
    """
    lines = text.split("\n")
    kept: list[str] = []
    waiting: list[tuple[int, str]] = []  # where a chain stood among the kept lines, and of what
    at = 0
    while at < len(lines):
        step = _chain(lines[at : at + len(DISTANCES)])
        if step is not None:
            indent, name = step
            if any(name == other for _, other in waiting):
                waiting = []
            waiting.append((len(kept), name))
            kept += lines[at : at + len(DISTANCES)]
            at += len(DISTANCES)
            if len(waiting) == COUNT:
                for place, _ in reversed(waiting):
                    del kept[place : place + len(DISTANCES)]
                kept += _loop(indent, [name for _, name in waiting])
                waiting = []
            continue
        if _ends(lines[at], {name for _, name in waiting}):
            waiting = []
        kept.append(lines[at])
        at += 1
    return "\n".join(kept)


def _chain(lines: Sequence[str]) -> tuple[str, str] | None:
    """Indentation and name of a sum over 32 threads, if these lines are one."""
    steps = [_STEP.match(line) for line in lines]
    found = [step.groups() for step in steps if step is not None]
    is_whole = len(found) == len(DISTANCES) and len({step[:2] for step in found}) == 1
    if not is_whole or tuple(distance for *_, distance in found) != DISTANCES:
        return None
    indent, name, _ = found[0]
    return indent, name


def _ends(line: str, names: set[str]) -> bool:
    """Return whether sums that wait may not be made after a line: a block's end, or it uses one."""
    is_plain = line.endswith(";") and "{" not in line and "Barrier" not in line
    return not is_plain or not names.isdisjoint(_NAME.findall(line))


def _loop(indent: str, names: Sequence[str]) -> list[str]:
    added = "{0}[0i] = ({0}[0i] + subgroupShuffleDown({0}[0i], down));"
    return [
        f"{indent}{_LOOP}",
        *(f"{indent}  {added.format(name)}" for name in names),
        f"{indent}}}",
    ]
