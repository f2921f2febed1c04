"""Measure what int8 activations cost in quality: appends a line each to a results file.

`tiny` answers its held-out questions through the CPU build in both forms. Random models of E2B's
kind, with channels planted that are `factor` times larger than their neighbours (a norm's weight
times the factor, the columns that read it divided by it, so that the model computes the same), are
compared by their next-token distributions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from benchmarks.environment import environment
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.progress import ByteProgress
from gemma4_compile.runtime import Engine
from gemma4_compile.targets.spec import ACTIVATIONS, FLOAT, INT8
from gemma4_compile.tiny.checkpoint import shipped_file
from tests import models
from tools.training.tiny.evaluate import mark, tasks
from tools.training.tiny.further import all_evaluation_dialogues

RESULTS = Path(__file__).resolve().parent / "results" / "activation_loss.jsonl"
WIDE = {"hidden_size": 512, "intermediate_size": 1024}
PLANTED = 128  # one channel of so many is large
PROMPTS, PROMPT, DECODED = 4, 48, 32
READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "pre_feedforward_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
Float64Array = npt.NDArray[np.float64]


class _Silent:
    def stage(self, text: str) -> None:
        """Drop the message."""

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        yield lambda count: None


def with_outliers(
    weights: dict[str, models.Float32Array], factor: float
) -> dict[str, models.Float32Array]:
    """The same function with some large channels in front of the matmuls."""
    changed = dict(weights)
    for name in weights:
        layer, _, norm = name.removesuffix(".weight").rpartition(".")
        if norm not in READERS or not name.endswith(".weight"):
            continue
        scale = np.ones(weights[name].shape, np.float32)
        scale[PLANTED // 2 :: PLANTED] = factor
        changed[name] = weights[name] * scale
        for reader in READERS[norm]:
            matrix = f"{layer}.{reader}.weight"
            if matrix in weights:
                changed[matrix] = weights[matrix] / scale
    return changed


def next_tokens(package: Path) -> Float64Array:
    """Logarithms of the probabilities after each decoded token of fixed prompts."""
    engine = Engine.open(package)
    rows = []
    for seed in range(PROMPTS):
        ids = models.prompt(PROMPT + DECODED, seed=seed)
        engine.clear()
        engine.prefill([int(i) for i in ids[:PROMPT]])
        rows += [engine.decode(int(i)) for i in ids[PROMPT:]]
    logits = np.stack(rows).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def compare(quant: str, factor: float) -> dict[str, Any]:
    """Divergence of the two forms' distributions, and how often both choose the same token."""
    config = {**models.KINDS["e2b"], **WIDE}
    weights = with_outliers(models.random_weights(config), factor)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = models.write_checkpoint(Path(folder) / "model", config, weights=weights)
        for form in ACTIVATIONS:
            package = Path(folder) / form
            request = CompileRequest(
                str(checkpoint.path), "cpu", quant, package, context_length=96, activations=form
            )
            compile_model(request, _Silent())
            found[form] = next_tokens(package)
    floats, rounded = found[FLOAT], found[INT8]
    divergence = (np.exp(floats) * (floats - rounded)).sum(axis=1)
    return {
        "measure": "random model",
        "quant": quant,
        "factor": factor,
        "tokens": len(floats),
        "kl_mean": float(divergence.mean()),
        "kl_max": float(divergence.max()),
        "same_choice": float((floats.argmax(axis=1) == rounded.argmax(axis=1)).mean()),
    }


def answers(quant: str, activations: str, per_kind: int) -> dict[str, Any]:
    """The share of `tiny`'s held-out questions that are answered word for word."""
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
    questions = tasks(all_evaluation_dialogues(per_kind), tokenizer)
    marks = mark("cpu", quant, questions, activations)
    return {
        "measure": "tiny",
        "quant": quant,
        "activations": activations,
        "questions": len(questions),
        "right": marks["all"],
        "kinds_not_all_right": {k: v for k, v in marks.items() if v < 1 and k != "all"},
    }


def main() -> None:
    """Measure, and append."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quants", nargs="+", default=["q4f16", "q8f16"])
    parser.add_argument("--factors", nargs="*", type=float, default=[1, 4, 16, 64])
    parser.add_argument("--per-kind", type=int, default=50, help="questions of tiny; 0 for none")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    def lines() -> Iterator[dict[str, Any]]:
        for quant in options.quants:
            for factor in options.factors:
                yield compare(quant, factor)
        for quant in options.quants if options.per_kind else ():
            for form in ACTIVATIONS:
                yield answers(quant, form, options.per_kind)

    for line in lines():
        print(json.dumps(line), flush=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, **environment()}) + "\n")


if __name__ == "__main__":
    main()
