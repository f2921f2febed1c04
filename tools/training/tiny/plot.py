"""The training log as an SVG picture: `python -m tools.training.tiny.plot docs/tiny-loss.svg`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LOG = Path(__file__).with_name("log.jsonl")
WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 60, 30, 45
LOSS_COLOUR, MARK_COLOUR, QUANTISED_COLOUR, INK = "#1f6feb", "#1a7f37", "#bf8700", "#57606a"
LOSS_POWERS = range(-4, 2)

Point = tuple[float, float]


def _line(points: Sequence[Point], colour: str, dashes: str = "") -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"'
        f' stroke-dasharray="{dashes or "none"}"/>'
    )


def _text(x: float, y: float, text: str, colour: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def picture(entries: Sequence[dict[str, Any]]) -> str:
    """The loss (logarithmic, left) and the share of right answers (right) over the steps."""
    steps = [entry["step"] for entry in entries]
    across = _scale(0, steps[-1], LEFT, WIDTH - RIGHT)
    down = _scale(LOSS_POWERS[0], LOSS_POWERS[-1], HEIGHT - BOTTOM, TOP)
    share = _scale(0, 1, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in LOSS_POWERS:
        y = down(power)
        parts.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#eaeef2"))
        parts.append(_text(LEFT - 8, y + 4, f"{10.0**power:g}", LOSS_COLOUR, "end"))
    for tenth in range(0, 11, 2):
        y = share(tenth / 10) + 4
        parts.append(_text(WIDTH - RIGHT + 8, y, f"{tenth * 10} %", MARK_COLOUR, "start"))
    for step in range(0, int(steps[-1]) + 1, 1000):
        parts.append(_text(across(step), HEIGHT - BOTTOM + 18, str(step)))
    losses = [math.log10(entry["loss"]) for entry in entries]
    marked = [entry for entry in entries if "right" in entry]
    for name, colour, dashes in (("f32", MARK_COLOUR, ""), ("q4", QUANTISED_COLOUR, "4 3")):
        found = [(across(entry["step"]), share(entry["right"][name])) for entry in marked]
        parts.append(_line(found, colour, dashes))
    parts.append(
        _line([(across(s), down(v)) for s, v in zip(steps, losses, strict=True)], LOSS_COLOUR)
    )
    parts.append(_text(LEFT, 18, "training loss", LOSS_COLOUR, "start"))
    parts.append(_text(WIDTH / 2, 18, "right answers, held out, f32", MARK_COLOUR))
    parts.append(_text(WIDTH - RIGHT, 18, "the same in 4 bits", QUANTISED_COLOUR, "end"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, "step"))
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the picture to the path of the first argument."""
    entries = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
    Path(sys.argv[1]).write_text(picture(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
