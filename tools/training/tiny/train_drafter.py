"""Trains a drafter for `tiny`: `python -m tools.training.tiny.train_drafter --output DIR`.

The target's weights stay as they are. Writes `config.json`, `model.safetensors` (bfloat16),
`log.jsonl` and `marks.json`. The schedule follows the clock (`--seconds`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.func import functional_call
from torch.nn import functional

from gemma4_compile.tiny.safetensors_file import write_safetensors
from tools.training.tiny import model as tiny_model
from tools.training.tiny.data import BoolArray, IntArray, answered, batches, make_corpus, padded
from tools.training.tiny.drafter_model import (
    DrafterModel,
    Target,
    drafter_config,
    drafter_shapes,
    read_target,
)
from tools.training.tiny.fake_quantisation import rounded
from tools.training.tiny.further import all_evaluation_dialogues, further_dialogue
from tools.training.tiny.train import ADAM_BETAS, CLIP_NORM, ahead

DRAFTS = 4  # of a round, in the marks
_LATER = 0.8  # weight of a draft to that of the one before: it counts only if that was right
_BITS = 4


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=tiny_model.SHIPPED_FILES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300, help="of the training")
    parser.add_argument("--steps", type=int, help="stop after so many, for tests")
    parser.add_argument("--dialogues", type=int, default=400_000)
    parser.add_argument("--batch-tokens", type=int, default=24_576)
    parser.add_argument("--guesses", type=int, default=5, help="in a row, that are trained")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--quantised-from", type=float, default=0.7, help="share of the schedule")
    parser.add_argument("--questions-per-kind", type=int, default=10)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    return parser.parse_args(given)


def losses(
    logits: list[torch.Tensor], ids: torch.Tensor, wanted: torch.Tensor
) -> list[torch.Tensor]:
    """Cross entropy of each draft in a row, over the tokens that the model says.

    Parameters
    ----------
    logits : (B, T, vocab_size) of each draft; draft j at place p is for token p + j + 1
    ids, wanted : (B, T) tokens, and whether the model says them
    """
    found = []
    for j, draft in enumerate(logits):
        length = ids.shape[1] - j - 1
        # Every token of the row must be the model's own, up to the one that is drafted.
        inside = torch.stack([wanted[:, 1 + i : 1 + i + length] for i in range(j + 1)]).all(0)
        found.append(functional.cross_entropy(draft[:, :length][inside], ids[:, j + 1 :][inside]))
    return found


def rounds(right: IntArray, said: BoolArray) -> tuple[int, int]:
    """Tokens of the model's answers, and the steps in which they are said.

    Parameters
    ----------
    right : (B, T) how many drafts of a round that begins at a place come true
    said : (B, T) tokens that the model says
    """
    tokens = steps = 0
    for dialogue, own in zip(right, said, strict=True):
        place = 0
        while place + 1 < len(own):
            if not own[place + 1]:
                place += 1
                continue
            rest = own[place + 1 :]
            left = len(rest) if rest.all() else int(rest.argmin())
            drawn = min(int(dialogue[place]) + 1, left)
            tokens, steps, place = tokens + drawn, steps + 1, place + drawn
    return tokens, steps


def _quantised(model: DrafterModel) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            with torch.no_grad():
                step = rounded(parameter, _BITS) - parameter
            found[name] = parameter + step
    return found


@torch.no_grad()
def tokens_a_step(
    model: DrafterModel, target: Any, examination: list[IntArray], model_id: int
) -> dict[str, float]:
    """Tokens a step with DRAFTS drafts, by what decides whether a draft is right."""
    device = next(model.parameters()).device
    counts = np.zeros((2, 2), np.int64)
    parameters = _quantised(model)
    for batch in examination:
        ids = torch.from_numpy(batch).to(device)
        read = read_target(target, ids)
        given = functional_call(model, parameters, args=(ids, read, DRAFTS))
        wanted = answered(batch, model_id)
        for index, truth in enumerate((ids[:, 1:], read.best[:, :-1])):
            right = torch.zeros_like(ids)
            alive = torch.ones_like(ids, dtype=torch.bool)
            for j, logits in enumerate(given):
                same = torch.zeros_like(alive)
                length = ids.shape[1] - j - 1
                same[:, :length] = logits[:, :length].argmax(-1) == truth[:, j:]
                alive = alive & same
                right = right + alive
            counts[index] += rounds(right.cpu().numpy(), wanted)
    return {
        name: float(tokens / steps)
        for name, (tokens, steps) in zip(("dialogues", "target"), counts.tolist(), strict=True)
    }


def _examination(options: argparse.Namespace, tokenizer: Tokenizer) -> list[IntArray]:
    texts = [one.text() for one in all_evaluation_dialogues(options.questions_per_kind)]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = sorted((np.array(one.ids) for one in encoded), key=len)
    return [padded(rows[begin : begin + 64]) for begin in range(0, len(rows), 64)]


def _batches(
    options: argparse.Namespace, model_id: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    corpus = make_corpus(options.files, options.dialogues, options.workers, further_dialogue)
    for ids in ahead(batches(corpus, options.batch_tokens, options.seed)):
        yield torch.from_numpy(ids), torch.from_numpy(answered(ids, model_id))


def save(model: DrafterModel, folder: Path) -> None:
    """Write config and weights (bfloat16) as a checkpoint has them."""
    state = {name.replace("/", "."): value for name, value in model.tensors.items()}
    tensors = {
        name: state[name].detach().float().cpu().numpy() for name in drafter_shapes(model.config)
    }
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", tensors, "bfloat16")


def _learn(
    model: DrafterModel,
    read: Target,
    batch: tuple[torch.Tensor, torch.Tensor],
    drafts: int,
    *,
    is_late: bool,
) -> list[torch.Tensor]:
    """Gradients of one batch; the losses of the drafts in a row."""
    parameters = _quantised(model) if is_late else {}
    ids, wanted = batch
    found = losses(functional_call(model, parameters, args=(ids, read, drafts)), ids, wanted)
    total = sum((_LATER**j * loss for j, loss in enumerate(found)), torch.zeros_like(found[0]))
    total.backward()  # type: ignore[no-untyped-call]  # so it is in torch
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    return [loss.detach() for loss in found]


def train(options: argparse.Namespace) -> None:
    """Run the training and write its results."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    config = tiny_model.read_config(options.files)
    target = tiny_model.load(config, options.files / "model.safetensors").to(device)
    model = DrafterModel(drafter_config(config)).to(device)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim == 2],
             "weight_decay": options.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
        ],
        lr=options.learning_rate, betas=ADAM_BETAS, fused=device == "cuda",
    )  # fmt: skip
    tokenizer = Tokenizer.from_file(str(options.files / "tokenizer.json"))
    model_id = tokenizer.token_to_id("model")
    assert model_id is not None, "the tokenizer is tiny's"
    examination = _examination(options, tokenizer)
    source = _batches(options, model_id)
    first = next(source)
    began, step = time.monotonic(), 0
    with (options.output / "log.jsonl").open("w", encoding="utf-8") as log:
        batch: tuple[torch.Tensor, torch.Tensor] = first
        while True:
            seconds = time.monotonic() - began
            progress = min(1.0, seconds / options.seconds)
            share = min((step + 1) / options.warm_up, 0.5 * (1 + np.cos(np.pi * progress)) + 0.01)
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * share
            ids, wanted = (one.to(device) for one in batch)
            optimizer.zero_grad(set_to_none=True)
            is_late = progress >= options.quantised_from
            read = read_target(target, ids)
            each = _learn(model, read, (ids, wanted), options.guesses, is_late=is_late)
            optimizer.step()
            step += 1
            done = progress >= 1.0 or step == options.steps
            if step % 200 == 0 or done:
                entry: dict[str, Any] = {
                    "step": step,
                    "seconds": round(seconds, 1),
                    "losses": [round(float(loss), 4) for loss in each],
                }
                if step % 1000 == 0 or done:
                    entry["tokens a step"] = tokens_a_step(model, target, examination, model_id)
                print(json.dumps(entry), flush=True)
                log.write(json.dumps(entry) + "\n")
                log.flush()
            if done:
                break
            batch = next(source)
    save(model, options.output)
    marks = tokens_a_step(model, target, examination, model_id)
    (options.output / "marks.json").write_text(json.dumps(marks, indent=1) + "\n")
    print(json.dumps(marks))


if __name__ == "__main__":
    train(arguments())
