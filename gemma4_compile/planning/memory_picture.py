"""Memory by part as a picture: an SVG of bars, and the same in words.

It is written by hand, so that a package's page has it without a plotting library. Colours are of
Okabe and Ito's palette (2008), for every eye; each bar has its name and its number beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from gemma4_compile.planning.plan_report import size
from gemma4_compile.planning.weight_parts import PARTS

_COLOURS: Mapping[str, str] = {
    "decoder": "#0072b2",
    "experts": "#56b4e9",
    "embedding": "#009e73",
    "per_layer_embedding": "#e69f00",
    "vision": "#cc79a7",
    "audio": "#d55e00",
    "drafter": "#999999",
    "kv": "#f0e442",
    "activations": "#44546a",
}
_OTHER, _INK = "#777777", "#222222"
_TITLE = "Memory of the device by part"
_WIDTH, _LEFT, _RIGHT = 760, 210, 210
_ROW, _BAR, _TOP = 26, 16, 34
_MOST_LETTERS = 60


@dataclass(frozen=True)
class Memory:
    """What a picture shows.

    Attributes
    ----------
    parts : bytes by part, keys of PARTS, wherever they lie
    on_host : of these, what lies in the host's memory
    budget_bytes : what the rest had to fit into, without its margin; None for none
    """

    parts: Mapping[str, int]
    on_host: Mapping[str, int] = field(default_factory=dict)
    budget_bytes: int | None = None

    @property
    def on_device(self) -> dict[str, int]:
        """Bytes by part that the device holds."""
        return {part: all_ - self.on_host.get(part, 0) for part, all_ in self.parts.items()}


def picture_words(memory: Memory) -> str:
    """The picture in words, for those who do not see it."""
    rows = [f"{_name(part)} {size(nbytes)}" for part, nbytes in memory.on_device.items()]
    rows += [f"on the host {_name(part)} {size(nbytes)}" for part, nbytes in memory.on_host.items()]
    beside = "" if memory.budget_bytes is None else f" of {size(memory.budget_bytes)}"
    total = size(sum(memory.on_device.values()))
    return f"Memory of the device: {total}{beside} in all; {', '.join(rows)}."


def memory_picture(memory: Memory) -> str:
    """An SVG of a bar for each part, one for all of them, and one for the budget.

    What lies on the host has an outline alone. Names that are not of PARTS are escaped.
    """
    device, budget = memory.on_device, memory.budget_bytes
    total = sum(device.values())
    most = max(total, budget or 0, *memory.parts.values(), 1)
    rows = [
        _Row(_name(part), {part: size}, memory.on_host.get(part, 0))
        for part, size in device.items()
    ]
    rows.append(_Row("all", device))
    if budget is not None:
        rows.append(_Row("budget", {"": budget}))
    height = _TOP + _ROW * len(rows) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title words" '
        'font-family="sans-serif" font-size="13">',
        f'<title id="title">{_TITLE}</title>',
        f'<desc id="words">{escape(picture_words(memory))}</desc>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-weight="bold" fill="{_INK}">{_TITLE}</text>',
    ]
    for index, row in enumerate(rows):
        lines += row.lines(_TOP + index * _ROW, (_WIDTH - _LEFT - _RIGHT) / most)
    return "\n".join([*lines, "</svg>", ""])


@dataclass(frozen=True)
class _Row:
    """A line of the picture: bars behind one another, and what is not on the device."""

    name: str
    pieces: Mapping[str, int]
    host_bytes: int = 0

    def lines(self, top: int, per_byte: float) -> Iterator[str]:
        """Its elements, at a height in pixels and with a width in pixels per byte."""
        baseline, x = top + _BAR - 3, float(_LEFT)
        text = f'<text x="{_LEFT - 10}" y="{baseline}" text-anchor="end" fill="{_INK}">'
        yield f"{text}{escape(self.name)}</text>"
        for part, nbytes in self.pieces.items():
            colour = _COLOURS.get(part, _OTHER)
            yield f'<rect {_box(x, top, nbytes * per_byte)} fill="{colour}"/>'
            x += nbytes * per_byte
        words = size(sum(self.pieces.values()))
        if self.host_bytes:
            width = self.host_bytes * per_byte
            dashed = f'fill="none" stroke="{_INK}" stroke-dasharray="3 2"'
            yield f"<rect {_box(x, top, width)} {dashed}/>"
            x += width
            words += f", {size(self.host_bytes)} on the host"
        yield f'<text x="{x + 8:.2f}" y="{baseline}" fill="{_INK}">{words}</text>'


def _box(x: float, top: int, width: float) -> str:
    return f'x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}"'


def _name(part: str) -> str:
    """Name of a part, for people."""
    return PARTS.get(part, part[:_MOST_LETTERS])
