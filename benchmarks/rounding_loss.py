"""What rounding weights costs, quantizer by quantizer and part by part: appends result lines.

Of weights the relative error; of models the divergence from themselves in float32. `tiny` reads its
own held-out dialogues, a random decoder of E2B's kind with heavy tails random tokens, and
`--checkpoint NAME=FILE` adds other weights of tiny's shapes (docs/numerics.md says how `plain` was
trained, which never saw a rounded weight). `--package NAME=DIR` measures what a package stores, a
calibrated one for instance. `--draw FILE` draws the frontier of the lines there are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import environment
from benchmarks.frontier_picture import picture
from benchmarks.quantizers import QUANTIZERS, Float32Array
from benchmarks.rounded_models import HEAVY_DEGREES, PARTS, WEIGHTS, Subject, heavy, matrices, tiny
from benchmarks.synthetic_checkpoint import config_json
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.runtime.package.package import read_provenance

RESULTS = Path(__file__).resolve().parent / "results" / "quantizers.jsonl"
SHAPE = (1024, 1024)
ATTENTION, MLP = ("q", "k", "v", "o"), ("gate", "up", "down")
FOUR, SIX, EIGHT = "q4f16", "q6f16", "q8f16"
THIRDS = ("first third", "second third", "last third")

Chosen = Mapping[str, str]
"""Quantizers by part; `rest` is that of every other, and `small` has EIGHT unless it is named."""


def weights() -> dict[str, Float32Array]:
    """Matrices of weights that are spread as their names say."""
    random = np.random.default_rng(0)
    drawn = {
        "normal": random.standard_normal(SHAPE),
        "laplace": random.laplace(size=SHAPE),
        "heavy": random.standard_t(HEAVY_DEGREES, SHAPE),
    }
    return {name: values.astype(np.float32) for name, values in drawn.items()}


def weight_errors() -> dict[str, dict[str, float]]:
    """Relative error by quantizer and kind of weight."""
    found: dict[str, dict[str, float]] = {}
    for kind, values in weights().items():
        for name, quantizer in QUANTIZERS.items():
            error = np.linalg.norm(quantizer(values) - values) / np.linalg.norm(values)
            found.setdefault(name, {})[kind] = round(float(error), 5)
    return found


def points() -> dict[str, Chosen]:
    """What is compared, by name: whole quantizers, recipes, and one part with more bits."""
    found: dict[str, Chosen] = {name: {"rest": name} for name in QUANTIZERS}
    for name in ("max7", "Q4_0", "IQ4_NL", "Q4_K"):
        found[f"{name}, head 8"] = {"rest": name, "head": EIGHT}
        found[f"{name}, head Q6_K"] = {"rest": name, "head": "Q6_K"}
    groups = {**{part: (part,) for part in PARTS}, "attention": ATTENTION, "mlp": MLP}
    groups |= {"head, k, v": ("head", "k", "v"), "head, attention": ("head", *ATTENTION)}
    groups |= {"head, down": ("head", "down"), "head, table": ("head", "table")}
    groups |= {third: (third,) for third in THIRDS}
    for label, parts in groups.items():
        for bits, quantizer in ((6, SIX), (8, EIGHT)):
            if (label, bits) != ("small", 8):  # which it has anyway
                chosen = {"rest": FOUR, **dict.fromkeys(parts, quantizer)}
                found[f"4 bits, {label} {bits}"] = chosen
    for label, parts in (("head", ("head",)), ("head, attention", ("head", *ATTENTION))):
        found[f"q4_k, {label} 6"] = {"rest": "q4_k", **dict.fromkeys(parts, SIX)}
    for bits in (2, 3):
        fewer = f"{bits} bits, minima"
        fine = {"rest": "q4_k", **dict.fromkeys(("head", *ATTENTION), SIX)}
        found[f"q4_k, mlp {bits}, head, attention 6"] = fine | dict.fromkeys(MLP, fewer)
        found[f"q4_k, gate, up {bits}, head, attention 6"] = fine | dict.fromkeys(
            ("gate", "up"), fewer
        )
        found[f"q4_k, table {bits}, head, attention 6"] = {**fine, "table": fewer}
    found["4 bits"] = {"rest": FOUR, "small": EIGHT}
    found["4 bits, small 4"] = {"rest": FOUR, "small": FOUR}
    return found


def choose(chosen: Chosen, layers: int) -> Callable[[str, int | None], str]:
    """The quantizer of a part and layer."""

    def of(part: str, layer: int | None) -> str:
        third = None if layer is None or part == "small" else THIRDS[3 * layer // layers]
        for name in (part, third or part):
            if name in chosen:
                return chosen[name]
        rest = chosen["rest"]
        return EIGHT if part == "small" and QUANTIZERS[rest].bits < 8 else rest

    return of


def stored_bytes(config: Gemma4Config, chosen: Chosen) -> tuple[float, float]:
    """Bytes of all matrices, and of those that a decoded token reads."""
    of = choose(chosen, config.num_hidden_layers)
    whole = read = 0.0
    for part, layer, count in matrices(config).values():
        size = count * QUANTIZERS[of(part, layer)].bits / 8
        share = config.top_k_experts / config.num_experts if part == "experts" else 1.0
        whole += size
        read += 0.0 if part == "table" else size * share
    return whole, read


def costs(chosen: Chosen) -> dict[str, dict[str, float]]:
    """Bytes of released sizes next to all matrices in 4 bits: of a token, and of memory."""
    found: dict[str, dict[str, float]] = {"token_bytes": {}, "memory_bytes": {}}
    for preset in preset_names():
        config = Gemma4Config.from_dict(config_json(preset))
        (memory, token), (least, least_token) = (
            stored_bytes(config, one) for one in (chosen, {"rest": FOUR})
        )
        found["token_bytes"][preset] = round(token / least_token, 4)
        found["memory_bytes"][preset] = round(memory / least, 4)
    return found


def package_line(subject: Subject, package: Path, seed: int) -> dict[str, Any]:
    """What the weights lose that a package stores."""
    build = read_provenance(package).build
    loss = asdict(subject.loss_of(package))
    return {
        "measure": "package",
        "model": subject.name,
        "seed": seed,
        "positions": subject.positions,
        "recipe": build["recipe"],
        "calibration": build.get("calibration"),
        **{key: value and round(value, 6) for key, value in loss.items()},
    }


def measured(subjects: list[Subject], wanted: str) -> Iterator[dict[str, Any]]:
    """A line for each point and model."""
    for label, chosen in points().items():
        if wanted not in label:
            continue
        fields: dict[str, Any] = {"point": label, **costs(chosen)}
        if set(chosen) == {"rest"}:
            fields["bits"] = QUANTIZERS[chosen["rest"]].bits
        for subject in subjects:
            if "bits" in fields:
                fields["weight_error"] = round(subject.weight_error(chosen["rest"]), 5)
            loss = subject.loss(choose(chosen, subject.config.num_hidden_layers))
            rounded = {key: value and round(value, 6) for key, value in asdict(loss).items()}
            positions = subject.positions
            yield {"measure": "model", "model": subject.name, "positions": positions,
                   **fields, **rounded}  # fmt: skip


def main() -> None:
    """Measure and append, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--checkpoint", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--per-kind", type=int, default=2, help="dialogues of each kind")
    parser.add_argument("--only", default="", metavar="TEXT", help="points that are called so")
    parser.add_argument(
        "--package", action="append", default=[], metavar="NAME=DIR",
        help="measure what packages store of `tiny` or a --checkpoint, and nothing else",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the dialogues for --package")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw, and measure nothing")
    options = parser.parse_args()
    if options.draw is not None:
        lines = [json.loads(line) for line in options.output.read_text("utf-8").splitlines()]
        options.draw.write_text(picture(lines), encoding="utf-8")
        return

    files = dict(entry.split("=", 1) for entry in options.checkpoint)

    def lines_of() -> Iterator[dict[str, Any]]:
        for name, _, package in (entry.partition("=") for entry in options.package):
            checkpoint = Path(files.get(name, WEIGHTS))
            subject = tiny(options.per_kind, name, checkpoint, seed=options.seed)
            yield package_line(subject, Path(package), options.seed)
        if options.package:
            return
        if not options.only:
            for name, errors in weight_errors().items():
                bits = QUANTIZERS[name].bits
                yield {"measure": "weights", "point": name, "bits": bits, "weight_error": errors}
        subjects = [tiny(options.per_kind), heavy()]
        subjects += [tiny(options.per_kind, name, Path(file)) for name, file in files.items()]
        yield from measured(subjects, options.only)

    for line in lines_of():
        print(json.dumps(line), flush=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, **environment()}) + "\n")


if __name__ == "__main__":
    main()
