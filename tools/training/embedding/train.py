"""Trains `tiny-embedding` on a CPU: `python -m tools.training.embedding.train --output DIR`.

Writes `config.json`, `model.safetensors` (bfloat16), `log.jsonl` and `marks.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.func import functional_call
from torch.nn import functional

from tools.training.embedding.meanings import Pair, batch, examination
from tools.training.embedding.model import SIZES, build, encoded, pooled, save, tokenizer
from tools.training.tiny.fake_quantisation import quantised_parameters

_TEMPERATURE = 0.05
_EXAMINED = 600
_EXAMINATION_SEED = 7
_LEAST_RATE = 0.02  # of the highest one, at the end
_ADAM_BETAS = (0.9, 0.98)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pairs", type=int, default=128, help="of a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=60, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--quantised-from", type=float, default=0.75, help="share of the steps")
    return parser.parse_args(given)


def loss_of(first: torch.Tensor, second: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each text's partner among all others of the batch, both ways, of all sizes.

    Parameters
    ----------
    first, second : (B, embedding_dim) means before normalisation
    right : (B, B) texts of `second` that are as right as the partner, and count for nothing
    """
    total = torch.zeros(())
    wanted = torch.arange(len(first))
    ignored = right & ~torch.eye(len(first), dtype=torch.bool)
    for size in SIZES:
        one, other = (functional.normalize(half[:, :size], dim=-1) for half in (first, second))
        scores = (one @ other.T / _TEMPERATURE).masked_fill(ignored, -math.inf)
        total = total + functional.cross_entropy(scores, wanted)
        total = total + functional.cross_entropy(scores.T, wanted)
    return total / (2 * len(SIZES))


def _means(
    model: Any, parameters: Mapping[str, torch.Tensor], reader: Tokenizer, texts: Sequence[str]
) -> torch.Tensor:
    ids, mask = encoded(reader, texts)
    given = {"input_ids": ids, "attention_mask": mask}
    hidden = functional_call(model.language_model, dict(parameters), args=(), kwargs=given)
    return pooled(hidden.last_hidden_state, mask)


def nearest(queries: torch.Tensor, passages: torch.Tensor) -> float:
    """Share of queries (N, size) whose nearest passage (N, size) is their own."""
    best = (queries @ passages.T).argmax(-1)
    return float((best == torch.arange(len(queries))).float().mean())


@torch.no_grad()
def marks(
    model: Any, reader: Tokenizer, pairs: Sequence[Pair], bits: int | None = None
) -> dict[str, float]:
    """Share of held-out texts whose paraphrase is the nearest of all, by size."""
    found = {} if bits is None else quantised_parameters(model.language_model, bits)
    halves = [
        torch.cat([
            _means(model, found, reader, texts[begin : begin + 100])
            for begin in range(0, len(texts), 100)
        ])
        for texts in ([one.first for one in pairs], [one.second for one in pairs])
    ]  # fmt: skip
    return {
        str(size): nearest(*(functional.normalize(half[:, :size], dim=-1) for half in halves))
        for size in SIZES
    }


def _optimizer(model: Any, options: argparse.Namespace) -> torch.optim.Optimizer:
    matrices = [one for one in model.parameters() if one.ndim == 2]
    vectors = [one for one in model.parameters() if one.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=_ADAM_BETAS)


def _rate(step: int, options: argparse.Namespace) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / options.steps))
    return float(
        options.learning_rate * min((step + 1) / options.warm_up, max(cosine, _LEAST_RATE))
    )


def train(options: argparse.Namespace) -> None:
    """Run the training and write its results."""
    torch.manual_seed(options.seed)
    rng = Random(options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    model, reader = build().train(), tokenizer()
    optimizer = _optimizer(model, options)
    examined = examination(_EXAMINATION_SEED, _EXAMINED)
    recent: list[float] = []
    began = time.monotonic()
    with (options.output / "log.jsonl").open("w", encoding="utf-8") as log:
        for step in range(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = _rate(step, options)
            pairs = batch(rng, options.pairs)
            late = step >= options.quantised_from * options.steps
            rounded = quantised_parameters(model.language_model, 4) if late else {}
            first = _means(model, rounded, reader, [one.first for one in pairs])
            second = _means(model, rounded, reader, [one.second for one in pairs])
            right = torch.tensor([[one.matches(other) for other in pairs] for one in pairs])
            loss = loss_of(first, second, right)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # so it is in torch
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recent.append(float(loss.detach()))
            if (step + 1) % 100 == 0 or step + 1 == options.steps:
                entry: dict[str, Any] = {
                    "step": step + 1,
                    "loss": round(sum(recent) / len(recent), 4),
                    "seconds": round(time.monotonic() - began, 1),
                    "nearest": marks(model, reader, examined),
                }
                recent = []
                save(model, options.output)
                print(json.dumps(entry), flush=True)
                log.write(json.dumps(entry) + "\n")
                log.flush()
    found = {"f32": marks(model, reader, examined), "q4": marks(model, reader, examined, 4)}
    (options.output / "marks.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    train(arguments())
