"""Trains `tiny`: `python -m tools.training.tiny.train --output DIR`.

Writes `model.safetensors` (bfloat16), `log.jsonl` and `marks.json`. A GPU is used if there is one;
the numbers of a run then differ a little from those of a CPU, since sums run in another order. With
`--further` the second stage goes on from the weights of a first one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.func import functional_call

from tools.training.tiny import model as tiny_model
from tools.training.tiny.data import IntArray, answered, batches, make_corpus
from tools.training.tiny.dialogues import training_dialogue
from tools.training.tiny.fake_quantisation import quantised_parameters
from tools.training.tiny.further import all_evaluation_dialogues, further_dialogue
from tools.training.tiny.marks import Examination

ADAM_BETAS = (0.9, 0.98)
CLIP_NORM = 1.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=tiny_model.SHIPPED_FILES)
    parser.add_argument(
        "--further", type=Path, metavar="FILE", help="go on from these weights with the new kinds"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dialogues", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=6_900)
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--quantised-from", type=float, default=0.6, help="share of the steps")
    parser.add_argument("--quantised-share", type=float, default=0.75, help="of the steps after")
    parser.add_argument("--mark-every", type=int, default=1000)
    parser.add_argument("--questions-per-kind", type=int, default=50)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, help="stop with an error beyond this time")
    return parser.parse_args()


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _optimizer(model: Any, options: argparse.Namespace, device: str) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=options.learning_rate, betas=ADAM_BETAS, fused=device == "cuda"
    )


def _learning_rate(step: int, options: argparse.Namespace) -> float:
    """Warm-up, then a half cosine down to 1 % of the peak."""
    if step < options.warm_up:
        return float(options.learning_rate * (step + 1) / options.warm_up)
    done = (step - options.warm_up) / max(1, options.steps - options.warm_up)
    return float(options.learning_rate * (0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * done))))


def _loss(model: Any, batch: tuple[torch.Tensor, torch.Tensor], bits: int | None) -> torch.Tensor:
    ids, places = batch
    parameters = {} if bits is None else quantised_parameters(model, bits)
    inputs = {"input_ids": ids, "use_cache": False}
    logits = functional_call(model, parameters, args=(), kwargs=inputs).logits
    # Row t predicts token t + 1; `places` are flat indices of the tokens to predict.
    rows = logits.flatten(0, 1)[places - 1]
    return torch.nn.functional.cross_entropy(rows.float(), ids.flatten()[places])


def _to_device(
    source: Iterator[IntArray], model_id: int | None, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for ids in source:
        places = np.flatnonzero(answered(ids, model_id))
        yield (
            torch.from_numpy(ids).to(device, non_blocking=True),
            torch.from_numpy(places).to(device, non_blocking=True),
        )


def ahead(source: Iterator[IntArray], count: int = 8) -> Iterator[IntArray]:
    """The same batches, made in a thread while the model is busy."""
    waiting: queue.Queue[IntArray] = queue.Queue(count)

    def fill() -> None:
        for ids in source:
            waiting.put(ids)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield waiting.get()


def _marks(model: Any, examination: Examination) -> dict[str, dict[str, float]]:
    model.eval()
    found = {"f32": examination.mark(model)}
    for bits in (8, 4):
        found[f"q{bits}"] = examination.mark(model, quantised_parameters(model, bits))
    model.train()
    return found


def train(options: argparse.Namespace) -> None:
    """Run the whole training and write its results."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    _seed_everything(options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    write = training_dialogue if options.further is None else further_dialogue
    corpus = make_corpus(options.files, options.dialogues, options.workers, write)
    print(f"{options.dialogues} dialogues, {len(corpus.ids)} tokens, "
          f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    config = tiny_model.read_config(options.files)
    model = tiny_model.build(config)
    if options.further is not None:
        model = tiny_model.load(config, options.further)
    model = model.to(device).train()
    print(f"{sum(p.numel() for p in model.parameters())} parameters on {device}", flush=True)
    optimizer = _optimizer(model, options, device)
    examination = Examination(all_evaluation_dialogues(options.questions_per_kind), options.files)
    tokenizer = Tokenizer.from_file(str(options.files / "tokenizer.json"))
    source = _to_device(
        ahead(batches(corpus, options.batch_tokens, options.seed)),
        tokenizer.token_to_id("model"),
        device,
    )
    log = (options.output / "log.jsonl").open("w", encoding="utf-8")
    recent: list[torch.Tensor] = []
    started = time.monotonic()
    for step in range(options.steps):
        rate = _learning_rate(step, options)
        for group in optimizer.param_groups:
            group["lr"] = rate
        late = step >= options.quantised_from * options.steps
        bits = 4 if late and random.random() < options.quantised_share else None
        loss = _loss(model, next(source), bits)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # so it is in torch
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        recent.append(loss.detach())
        last = step + 1 == options.steps
        if (step + 1) % 100 == 0 or last:
            seconds = time.monotonic() - started
            entry: dict[str, Any] = {
                "step": step + 1,
                "loss": round(float(torch.stack(recent).mean()), 5),
                "learning_rate": rate,
                "seconds": round(seconds, 1),
            }
            recent = []
            if (step + 1) % options.mark_every == 0:
                marks = _marks(model, examination)
                entry["right"] = {name: table["all"] for name, table in marks.items()}
                tiny_model.save(model, config, options.output / "model.safetensors")
            print(json.dumps(entry), flush=True)
            log.write(json.dumps(entry) + "\n")
            log.flush()
            if options.seconds is not None and seconds > options.seconds:
                raise SystemExit(f"not done after {seconds:.0f} s, at step {step + 1}")
    log.close()
    tiny_model.save(model, config, options.output / "model.safetensors")
    stored = tiny_model.load(config, options.output / "model.safetensors").to(device)
    marks = _marks(stored, examination)
    (options.output / "marks.json").write_text(json.dumps(marks, indent=1) + "\n")
    print(json.dumps(marks, indent=1))


if __name__ == "__main__":
    train(_arguments())
