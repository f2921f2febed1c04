"""A numerics report as a table for people, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gemma4_compile.media.limits import SAMPLE_RATE_HZ
from gemma4_compile.package.partial_build import NONFINITE
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.frontier_table import text_head, text_line, text_title
from gemma4_compile.verification.thresholds import worst_layer

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 70, 20, 64, 44
INK, GRID = "#24292f", "#d0d7de"
LINES = (
    ("arithmetic", "#1f6feb", "the package's own weights (its arithmetic)"),
    ("whole", "#cf222e", "the checkpoint's weights (arithmetic and recipe)"),
)
_FLOOR = 1e-8  # errors below it are drawn as it


def _rows(comparison: JsonObject) -> list[tuple[str, str, str]]:
    logits, bounds = comparison["logits"], comparison["thresholds"]
    ratio = logits["perplexity"] / logits["reference_perplexity"]
    layers = comparison["layers"]
    worst = worst_layer([layer["cosine_mean"] for layer in layers])
    return [
        ("mean KL divergence, nats", f"{logits['kl_mean']:.3g}", f"<= {bounds['kl_mean']:g}"),
        ("largest KL divergence, nats", f"{logits['kl_max']:.3g}", ""),
        ("top-1 agreement", f"{logits['top1']:.1%}", f">= {bounds['top1']:.0%}"),
        ("top-5 agreement", f"{logits['top5']:.1%}", f">= {bounds['top5']:.0%}"),
        ("largest error of a logit", f"{logits['max_error']:.3g}", ""),
        (
            "perplexity (reference)",
            f"{logits['perplexity']:.4g} ({logits['reference_perplexity']:.4g})",
            f"ratio {ratio:.4g} <= {bounds['perplexity_ratio']:g}",
        ),
        (
            f"lowest mean cosine, layer {worst}",
            f"{layers[worst]['cosine_mean']:.7f}",
            f">= {bounds['cosine']:g}",
        ),
    ]


def table(content: JsonObject, *, layers: bool = True) -> str:
    """The report as text; with `layers`, a line for each of them."""
    package, text = content["package"], content["text"]
    passed = "passed" if content["passed"] else "FAILED"
    versions = content["reference"]["versions"]
    lines = [
        f"numerics: {passed}",
        f"{package['target']} {package['recipe']}, activations {package['activations']}, "
        f"on {package['device']}",
        *_size_lines(package),
        f"against transformers {versions['transformers']} in float32 (torch {versions['torch']})",
        f"{text['decoded']} tokens decoded from the start, and after a prompt of "
        f"{text['long_prompt']} tokens (sliding window: {text['window']})",
    ]
    nonfinite = content["reference"].get(NONFINITE)
    if nonfinite:
        lines.append(
            f"note: {sum(nonfinite.values())} weights of the checkpoint are not finite; package "
            "and reference have 0 in their place"
        )
    if not text["longer_than_two_windows"]:
        lines.append(
            "note: the package's context is too short for a prompt of more than two windows"
        )
    for key, _, name in LINES:
        lines += ["", f"reference with {name}"]
        lines += [f"  {what:<32}{found:<22}{bound}" for what, found, bound in _rows(content[key])]
    consistency = content["consistency"]
    lines += [
        "",
        "the package against itself",
        f"  prefill in chunks of {consistency['chunk']}: divergence "
        f"{consistency['chunked_prefill_kl']:.3g}, largest error "
        f"{consistency['chunked_prefill_max_error']:.3g}",
        f"  decoding against prefill: divergence {consistency['decode_kl']:.3g}, largest error "
        f"{consistency['decode_max_error']:.3g}",
        f"  with residual streams against without: largest error "
        f"{consistency['probe_max_error']:.3g}",
    ]
    if content.get("texts"):
        lines += ["", *_text_lines(content["texts"])]
    for modality, medium in content.get("media", {}).items():
        lines += ["", *_medium_lines(modality, medium)]
    if "drafter" in content:
        lines += ["", *_drafter_lines(content["drafter"])]
    if layers:
        lines += ["", *_layer_lines(content)]
    if content["failures"]:
        lines += ["", *(f"failed: {text}" for text in content["failures"])]
    return "\n".join(lines)


def _size_lines(package: JsonObject) -> list[str]:
    """Reports of earlier versions have no number of weights."""
    if "weights" not in package:
        return []
    return [
        f"{package['weights']:,} weights in {package['weights_bytes'] / 2**20:,.1f} MiB: "
        f"{package['bits_per_weight']:.3f} bits a weight"
    ]


def _text_lines(texts: JsonObject) -> list[str]:
    """Texts by form; reports of earlier versions have none."""
    lines = [f"{'texts, next to the checkpoint in float32':<44}{text_head()}"]
    for name, text in texts.items():
        decoded = f"the package, {text['decoded']} tokens decoded"
        lines += [
            f"  {text_title(name, text)}",
            f"    {'its weights alone, at every position':<40}{text_line(text['stored'])}",
            f"    {decoded:<40}{text_line(text['whole'])}",
        ]
    return lines


def _medium_lines(modality: str, medium: JsonObject) -> list[str]:
    shown, weights = medium["shown"], medium["weights"]
    if modality == "image":
        size = f"a picture of {shown['blocks_across']} x {shown['blocks_down']} blocks"
    else:
        size = f"a sound of {shown['samples'] / SAMPLE_RATE_HZ:.2f} s"
    lines = [
        f"{size}, {shown['rows']} rows; {medium['decoded']} tokens decoded after it",
        f"  {'largest error of a stored weight row':<40}{weights['error']:<14.3g}"
        f"<= {weights['bound']:.3g}",
    ]
    if medium["prompt"] is None:
        lines.append("  note: the package's context is too short for it: its rows alone were run")
    for key, _, name in LINES:
        one = medium[key]
        rows, logits, bounds = one["rows"], one["logits"], one["thresholds"]
        lines += [
            f"  with {name}",
            f"    {'relative error of the rows':<38}{rows['relative_error']:<14.3g}"
            f"<= {one['rows_bound']:.3g}",
            f"    {'error of a channel, mean (largest)':<38}"
            f"{rows['mean_error']:.3g} ({rows['max_error']:.3g})",
        ]
        if logits is not None:
            lines += [
                f"    {'mean KL divergence after it, nats':<38}{logits['kl_mean']:<14.3g}"
                f"<= {bounds['kl_mean']:g}",
                f"    {'greedy tokens that agree':<38}{logits['top1']:<14.1%}"
                f">= {bounds['top1']:.0%}",
            ]
    return lines


def _drafter_lines(drafter: JsonObject) -> list[str]:
    weights = drafter["weights"]
    lines = [
        f"the drafter, in {drafter['rounds']} rounds",
        f"  {'largest error of a stored weight row':<40}{weights['error']:<14.3g}"
        f"<= {weights['bound']:.3g}",
    ]
    for key, _, name in LINES:
        one = drafter[key]
        drafts, logits, bounds = one["guesses"], one["logits"], one["thresholds"]
        lines.append(f"  with {name}")
        rows: list[tuple[str, str, str]] = []
        if drafts is not None:
            rows = [
                (
                    f"{drafts['guesses']} drafts that agree",
                    f"{drafts['top1']:.1%}",
                    f">= {bounds['top1']:.0%}" if key == "arithmetic" else "",
                ),
                (
                    "their mean KL divergence, nats",
                    f"{drafts['kl_mean']:.3g}",
                    f"<= {one['kl_bound']:g}",
                ),
                (
                    "candidates in common",
                    f"{drafts['candidates']:.1%}",
                    f">= {bounds['top5']:.0%}",
                ),
                (
                    "mean cosine of their states",
                    f"{drafts['cosine_mean']:.7f}",
                    f">= {bounds['cosine']:g}",
                ),
            ]
        rows += [
            (
                f"{logits['positions']} checked tokens, mean KL",
                f"{logits['kl_mean']:.3g}",
                f"<= {bounds['kl_mean']:g}",
            ),
            ("their top-1 agreement", f"{logits['top1']:.1%}", f">= {bounds['top1']:.0%}"),
            (
                "mean cosine of their states",
                f"{one['states']['cosine_mean']:.7f}",
                f">= {bounds['cosine']:g}",
            ),
        ]
        lines += [f"    {what:<38}{found:<14}{bound}".rstrip() for what, found, bound in rows]
    return lines


def _layer_lines(content: JsonObject) -> list[str]:
    lines = [
        f"{'layer':<7}{'own weights':<36}{'checkpoint':<36}",
        f"{'':<7}{'cosine':<13}{'max error':<11}{'relative':<12}"
        f"{'cosine':<13}{'max error':<11}{'relative':<12}".rstrip(),
    ]
    pairs = zip(content["arithmetic"]["layers"], content["whole"]["layers"], strict=True)
    for index, pair in enumerate(pairs):
        cells = "".join(
            f"{layer['cosine_min']:<13.8f}{layer['max_error']:<11.3g}{layer['relative_error']:<12.3g}"
            for layer in pair
        )
        lines.append(f"{index:<7}{cells}".rstrip())
    return lines


def _points(layers: Sequence[Mapping[str, float]]) -> list[float]:
    return [max(layer["relative_error"], _FLOOR) for layer in layers]


def picture(content: JsonObject) -> str:
    """An SVG: the largest relative error of the residual stream after each layer, logarithmic."""
    series = [(_points(content[key]["layers"]), colour, name) for key, colour, name in LINES]
    finite = [v for values, _, _ in series for v in values if math.isfinite(v)] or [1.0]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    high = max(high, low + 1)
    count = max(len(values) for values, _, _ in series)
    across = (WIDTH - LEFT - RIGHT) / max(count - 1, 1)
    per_decade = (HEIGHT - TOP - BOTTOM) / (high - low)

    def place(index: int, value: float) -> tuple[float, float]:
        shown = value if math.isfinite(value) else 10.0**high
        return LEFT + index * across, TOP + (high - math.log10(shown)) * per_decade

    package = content["package"]
    title = f"{package['target']} {package['recipe']}: relative error of the residual stream"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" fill="{INK}" font-size="14">{title}</text>',
    ]
    for row, (_, colour, name) in enumerate(series):
        left = LEFT + row * 300
        parts.append(f'<rect x="{left}" y="32" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 17}" y="42" fill="{INK}">{name}</text>')
    for power in range(low, high + 1):
        height = place(0, 10.0**power)[1]
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"'
        parts.append(f'<line {ends} stroke="{GRID}"/>')
        at = f'x="{LEFT - 8}" y="{height + 4:.1f}"'
        parts.append(f'<text {at} fill="{INK}" text-anchor="end">1e{power}</text>')
    for values, colour, _ in series:
        points = [place(index, value) for index, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for index, (x, y) in enumerate(points):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
                f"<title>layer {index}: {values[index]:.3g}</title></circle>"
            )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" fill="{INK}" '
        f'text-anchor="middle">layers 0 to {count - 1}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])
