"""Draws where a step's time goes, from lines of results: `python -m benchmarks.webgpu.picture ...`.

One bar a line: the time of each group of kernels (of its launches alone, by timestamps, scaled to
the replayed step), and the bound of its weight bytes at the measured read bandwidth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 860, 190, 90, 26, 22, 58
INK = "#24292f"
GROUPS = (
    ("head", "#8250df", ("softcap",)),
    ("experts and router", "#bf8700", ("expert", "router", "permute_by_expert")),
    ("gate, up, down, qkv, o", "#1f6feb", ("gemv", "gemm")),
    (
        "attention",
        "#1a7f37",
        (
            "attention",
            "combine_splits",
            "quantized_combine",
            "stepped_combine",
            "qk_norm_rope_cache",
        ),
    ),
    ("norms, rounding", "#cf222e", ("norm", "quantize_rows")),
    ("other", "#8c959f", ("",)),
)


def group_of(kernel: str) -> str:
    """The group that a kernel's time counts to: the first whose word its name holds."""
    return next(name for name, _, words in GROUPS if any(word in kernel for word in words))


def shares(line: dict[str, Any]) -> dict[str, float]:
    """Milliseconds by group; together the replayed step."""
    by_group = {name: 0.0 for name, _, _ in GROUPS}
    for kernel in line["kernels"]:
        by_group[group_of(kernel["kernel"])] += kernel["timestamp_us"] or 0.0
    whole = sum(by_group.values())
    step = line["replayed_ms"]["median"]
    return {name: us / whole * step for name, us in by_group.items()}


def label(line: dict[str, Any]) -> str:
    """Label of a bar."""
    model = line["model"].removeprefix("gemma-4-").removesuffix("-it")
    what = f"after {line['context']}" if line["measure"] == "decode" else f"{line['tokens']} tokens"
    form = line.get("activations", "float")
    return f"{model} {'float' if form == 'exact' else form}, {what}"


def picture(lines: Sequence[dict[str, Any]]) -> str:
    """An SVG with a bar for each line."""
    height = TOP + len(lines) * (BAR + GAP) + 10
    longest = max(line["replayed_ms"]["median"] for line in lines)
    per_ms = (WIDTH - LEFT - RIGHT) / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    x = 10.0
    for name, colour, _ in GROUPS:
        parts.append(f'<rect x="{x:.0f}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="24" fill="{INK}">{name}</text>')
        x += 40 + 6.6 * len(name)
    for row, line in enumerate(lines):
        y, x = TOP + row * (BAR + GAP), float(LEFT)
        parts.append(f'<text x="10" y="{y + 17}" fill="{INK}">{label(line)}</text>')
        found = shares(line)
        for name, colour, _ in GROUPS:
            width = found[name] * per_ms
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}">'
                f"<title>{name}: {found[name]:.3g} ms</title></rect>"
            )
            x += width
        step = line["replayed_ms"]["median"]
        parts.append(f'<text x="{x + 6:.0f}" y="{y + 17}" fill="{INK}">{step:.3g} ms</text>')
        share = line.get("share_of_read_bandwidth")
        if share is not None:
            bound = LEFT + share * step * per_ms
            parts.append(
                f'<line x1="{bound:.1f}" x2="{bound:.1f}" y1="{y - 4}" y2="{y + BAR + 4}" '
                f'stroke="{INK}" stroke-width="2"><title>weight bytes at the read bandwidth: '
                f"{share * step:.3g} ms</title></line>"
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Read the lines of a commit, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--commit", required=True, help="of the lines to draw")
    parser.add_argument("--measure", choices=("decode", "prefill"), default="decode")
    options = parser.parse_args()
    found = [json.loads(text) for text in options.results.read_text().splitlines() if text]
    lines = [
        line
        for line in found
        if line["commit"] == options.commit
        and line["measure"] == options.measure
        and line.get("kernels")
    ]
    options.output.write_text(picture(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
