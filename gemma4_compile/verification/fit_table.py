"""A recipe that was fitted to a size, and what it was chosen by, as a table for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from gemma4_compile.types import JsonObject
from gemma4_compile.verification.frontier_table import text_head, text_line, text_title


def fit_table(content: JsonObject, model: str, file: Path | None) -> str:
    """Parts by what they lose for a byte, the recipe's measures, and how to go on.

    Parameters
    ----------
    model : as it was given
    file : where the recipe was written; None shows it
    """
    return "\n".join([*_parts(content), *_recipe(content), *_next(content, model, file)])


def _parts(content: JsonObject) -> Iterator[str]:
    versions, base = content["versions"], content["kl_mean_of_8_bits"]
    yield (
        f"parts in 4 bits, the rest in 8, against float32, by transformers "
        f"{versions['transformers']} (torch {versions['torch']}) on {content['device']}"
    )
    yield f"everything in 8 bits: mean KL {base:.3g}"
    yield ""
    yield f"{'part':<40}{'MiB more':>10}{'mean KL':>10}{'loss a MiB':>12}{'bits':>6}"
    yield f"{'':<40}{'in 8 bits':>10}{'in 4 bits':>10}"

    def loss_per_byte(one: JsonObject) -> float:
        return float(one["loss"] / (one["bytes_of_8_bits"] - one["bytes_of_4_bits"]))

    for one in sorted(content["parts"], key=lambda one: -loss_per_byte(one)):
        more = (one["bytes_of_8_bits"] - one["bytes_of_4_bits"]) / 2**20
        yield (
            f"{one['name']:<40}{more:>10.3g}{one['kl_mean_of_4_bits']:>10.3g}"
            f"{loss_per_byte(one) * 2**20:>12.3g}{one['bits']:>6}"
        )


def _recipe(content: JsonObject) -> Iterator[str]:
    found = content["found"]
    low, high = content["range"]
    yield ""
    yield (
        f"recipe: {found['bits_per_weight']:.3f} bits a weight of the decoder (at most "
        f"{content['fit_bits']:g} of {low:.3f} to {high:.3f}), "
        f"{found['weights_bytes'] / 2**20:.1f} MiB, {found['bytes_per_token'] / 2**20:.1f} MiB a "
        "token"
    )
    yield f"{'':<40}{text_head()}"
    yield f"{'all texts':<40}{text_line(found['all_texts'])}"
    for name, text in found["texts"].items():
        yield f"{text_title(name, content['texts'][name]):<40}{text_line(text)}"


def _next(content: JsonObject, model: str, file: Path | None) -> Iterator[str]:
    yield ""
    if file is None:
        yield json.dumps(content["recipe"], indent=1)
        yield "(--output FILE writes it into a file)"
        return
    given, name = shlex.quote(model), shlex.quote(str(file))
    recipes = shlex.quote(f"q4f16s,q4f16,q4f16+{file}")
    yield f"written: {file}"
    yield f"compare: gemma4-verify {given} --compare-recipes {recipes}"
    yield f"use:     gemma4-compile {given} --recipe {name} -o my-package"
