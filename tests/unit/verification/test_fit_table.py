"""Fitted recipes as a table."""

from __future__ import annotations

import shlex
from pathlib import Path

from gemma4_compile.options import compile as options
from gemma4_compile.options import verify as verify_options
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.fit_table import fit_table

MEASURES = {
    **{"kl_mean": 0.0125, "kl_p99": 0.5, "top1": 0.75, "top5": 0.8},
    **{"perplexity": 12.0, "reference_perplexity": 10.0},
}


def part(name: str, loss: float, more: int, bits: int) -> JsonObject:
    sizes = {"bytes_of_4_bits": more, "bytes_of_8_bits": 2 * more}
    return {"name": name, "loss": loss, "kl_mean_of_4_bits": 0.01 + loss, "bits": bits, **sizes}


CONTENT: JsonObject = {
    "versions": {"transformers": "5", "torch": "2"},
    **{"device": "cpu", "kl_mean_of_8_bits": 0.01, "fit_bits": 5.0, "range": [4.5, 8.5]},
    "parts": [part("large", 0.02, 8 << 20, 4), part("small", 0.01, 1 << 20, 8)],
    "recipe": {"schemes": {"large": "q4f16_1", "small": "q8f16_1"}},
    "texts": {"code": {"tokens": 20, "cut_tokens": 0}},
    "found": {
        **{"bits_per_weight": 4.9375, "weights_bytes": 9 << 20, "bytes_per_token": 3 << 20},
        **{"all_texts": MEASURES, "texts": {"code": MEASURES}},
    },
}


def test_parts_stand_by_what_they_lose_for_a_byte() -> None:
    shown = fit_table(CONTENT, "tiny", None)
    rows = [line.split() for line in shown.splitlines() if line.startswith(("small", "large"))]
    assert rows == [
        ["small", "1", "0.02", "0.01", "8"],
        ["large", "8", "0.03", "0.0025", "4"],
    ]
    assert "4.938 bits a weight of the decoder (at most 5 of 4.500 to 8.500), 9.0 MiB" in shown
    assert '"small": "q8f16_1"' in shown, "no file has it"


def test_the_next_commands_can_be_typed() -> None:
    shown = fit_table(CONTENT, "a model", Path("my recipe.json")).splitlines()
    compare, use = (shlex.split(line.split(":", 1)[1]) for line in shown[-2:])
    assert compare[:2] == ["gemma4-verify", "a model"]
    assert verify_options.COMMAND.parse(compare[1:]).package == Path("a model")
    assert compare[-1].endswith("q4f16+my recipe.json")
    parsed = options.COMMAND.parse(use[1:])
    assert (parsed.model, parsed.recipe) == ("a model", Path("my recipe.json"))
