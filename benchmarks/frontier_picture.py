"""Draws the lines of `rounding_loss`: what a model loses over the bytes that a token reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

WIDTH, HEIGHT, GAP = 360, 330, 20
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 34, 44
INK, GRID, OURS, OTHERS, IDEA = "#57606a", "#eaeef2", "#1f6feb", "#bf8700", "#8c959f"
MINIMA = "#8250df"  # ours with minima, whose line is another
SIZE = "gemma-4-E2B-it"
MODELS = {"tiny": "tiny", "plain": "tiny's shapes, trained without rounding",
          "heavy": "random, heavy tails"}  # fmt: skip
LOWEST, HIGHEST = 0.02, 0.3
LEAST, MOST = 0.98, 1.3
_LABEL = 75  # its width, about
SHOWN: Mapping[str, tuple[str, str]] = {
    "max7": ("until now", OTHERS),
    "Q4_0": ("Q4_0", OTHERS),
    "MLX 4, groups of 64": ("MLX", OTHERS),
    "Q4_K": ("Q4_K", OTHERS),
    "Q4_0, head Q6_K": ("Q4_0, head Q6_K", OTHERS),
    "q4_k, head 6": ("q4kf16", MINIMA),
    "q4_k, head, attention 6": ("q4kf16m", MINIMA),
    "4 bits": ("q4f16s", OURS),
    "4 bits, head 8": ("q4f16", OURS),
    "4 bits, head, attention 6": ("q4f16m", OURS),
    "4 bits, head, attention 8": ("q4f16l", OURS),
    "4 bits, attention 8": ("attention 8", IDEA),
    "4 bits, head 6": ("head 6", IDEA),
}
"""Points that are drawn, their names there, and whose they are."""


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _text(x: float, y: float, text: str, colour: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"'
        f' stroke-dasharray="{dashes}"/>'
    )


def _panel(title: str, found: Mapping[str, tuple[float, float]], begin: float) -> list[str]:
    """One model: bytes of a token across, divergence down, both by name of the point."""
    across = _scale(LEAST, MOST, begin + LEFT, begin + WIDTH - RIGHT)
    down = _scale(math.log(LOWEST), math.log(HIGHEST), HEIGHT - BOTTOM, TOP)
    parts = [_text(begin + WIDTH / 2, 18, title)]
    for value in (0.02, 0.03, 0.05, 0.1, 0.2, 0.3):
        y = down(math.log(value))
        parts.append(_line(begin + LEFT, y, begin + WIDTH - RIGHT, y, GRID))
        parts.append(_text(begin + LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    for tenth in range(4):
        x = across(1 + tenth / 10)
        parts.append(_line(x, TOP, x, HEIGHT - BOTTOM, GRID))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{1 + tenth / 10:g}"))
    ours = [(across(found[p][0]), down(math.log(found[p][1]))) for p, (_, colour) in SHOWN.items()
            if colour == OURS and p in found]  # fmt: skip
    for (x1, y1), (x2, y2) in pairwise(ours):
        parts.append(_line(x1, y1, x2, y2, OURS, "4 3"))
    last: list[tuple[float, float]] = []  # where labels are
    drawn = [(point, *SHOWN[point]) for point in sorted(found, key=lambda one: -found[one][1])]
    for point, label, colour in drawn:
        x, y = across(found[point][0]), down(math.log(found[point][1]))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        place = y + 4
        while any(abs(place - b) < 11 and abs(x - a) < _LABEL for a, b in last):
            place += 1
        last.append((x, place))
        anchor, shift = ("end", -8) if x > begin + WIDTH - 90 else ("start", 8)
        parts.append(_text(x + shift, place, label, colour, anchor))
    return parts


def picture(lines: Sequence[Mapping[str, Any]]) -> str:
    """An SVG with a panel for each model; of lines about the same point the last counts."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for line in lines:
        if line["measure"] == "model" and line["point"] in SHOWN:
            at = line["token_bytes"][SIZE], line["kl_mean"]
            found.setdefault(line["model"], {})[line["point"]] = at
    shown = [model for model in MODELS if model in found]
    width = len(shown) * (WIDTH + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for index, model in enumerate(shown):
        parts += _panel(MODELS[model], found[model], index * (WIDTH + GAP))
    caption = "bytes that a token of E2B reads, next to all matrices in 4 bits"
    parts.append(_text(width / 2, HEIGHT - 8, f"{caption}; upwards: mean KL, nats"))
    return "\n".join([*parts, "</svg>\n"])
