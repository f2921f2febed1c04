"""Teaches `tiny` to see and to hear: the third stage.

The whole model goes on from the shipped weights, its towers from random ones. The schedule follows
the clock (`--total-seconds`), since a device is lent for a time. `--seconds` ends a run early;
`--resume` goes on from what the last one wrote to `--output`: `state.pt`, `log.jsonl`,
`model.safetensors` (bfloat16) and `marks.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.func import functional_call

from tools.training.tiny import media_losses
from tools.training.tiny.data import IntArray, answered, batches, make_corpus
from tools.training.tiny.fake_quantisation import quantised_parameters
from tools.training.tiny.media_batches import MediaBatch, training_steps
from tools.training.tiny.media_dialogues import text_dialogue
from tools.training.tiny.media_marks import TOTALS, MediaExamination
from tools.training.tiny.media_model import Inputs, MediaModel, load_stored, save
from tools.training.tiny.model import SHIPPED_FILES, read_config
from tools.training.tiny.train import ADAM_BETAS, CLIP_NORM, ahead

_STATE = "state.pt"
_ROWS_WEIGHT = (0.5, 0.05)  # of the rows' own losses, at the start and at the end
_LAST_RATE = 0.02  # of the learning rate's peak
_PARTS = ("text", "pictures", "sounds")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=SHIPPED_FILES)
    parser.add_argument("--start", type=Path, help="weights to start from; default: those shipped")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-seconds", type=float, default=900, help="of the whole schedule")
    parser.add_argument("--seconds", type=float, help="save and stop after so many, marks included")
    parser.add_argument("--steps", type=int, help="save and stop after so many, for tests")
    parser.add_argument("--dialogues", type=int, default=400_000)
    parser.add_argument("--text-tokens", type=int, default=12_288, help="of a step")
    parser.add_argument("--patches", type=int, default=100_000, help="of a step's pictures")
    parser.add_argument("--sound-seconds", type=float, default=220, help="of a step's sounds")
    parser.add_argument("--text-rate", type=float, default=6e-4)
    parser.add_argument("--tower-rate", type=float, default=2e-3)
    parser.add_argument("--others-every", type=int, default=1, help="steps from text to text")
    parser.add_argument("--warm-up", type=int, default=150, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--quantised-from", type=float, default=0.5, help="share of the schedule")
    parser.add_argument("--quantised-share", type=float, default=0.75, help="of the steps after")
    parser.add_argument("--log-every", type=int, default=50, help="steps")
    parser.add_argument("--mark-every", type=float, default=100, help="seconds")
    parser.add_argument("--save-every", type=float, default=60, help="seconds")
    parser.add_argument("--exam-batches", type=int, default=14)
    parser.add_argument("--exam-patches", type=int, default=40_000, help="of a batch of pictures")
    parser.add_argument("--per-kind", type=int, default=8, help="questions of each kind of text")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    return parser.parse_args(given)


def make_optimizer(model: MediaModel, options: argparse.Namespace) -> torch.optim.AdamW:
    """AdamW; `peak` of a group is its highest rate."""
    groups: dict[tuple[bool, bool], list[Any]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(("language_model." in name, parameter.ndim == 2), []).append(parameter)
    found = [
        {
            "params": parameters,
            "peak": options.text_rate if is_text else options.tower_rate,
            "weight_decay": options.weight_decay if is_matrix else 0.0,
        }
        for (is_text, is_matrix), parameters in groups.items()
    ]
    return torch.optim.AdamW(found, lr=1e-3, betas=ADAM_BETAS, fused="cuda" in model.device)


def rate_at(step: int, progress: float, warm_up: int) -> float:
    """Share of the peak rate: warm-up, then half a cosine over the schedule."""
    cosine = 0.5 * (1 + np.cos(np.pi * min(1.0, progress)))
    return float(min(1.0, (step + 1) / warm_up) * (_LAST_RATE + (1 - _LAST_RATE) * cosine))


def step_losses(
    model: MediaModel,
    parts: tuple[MediaBatch | None, ...],
    parameters: dict[str, torch.Tensor],
    rows_weight: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of the losses of a step's batches, and each by name."""
    total, each = torch.zeros((), device=model.device), {}
    for name, batch in zip(_PARTS, parts, strict=True):
        if batch is None:
            continue
        inputs = Inputs.of(batch, model.device)
        read = functional_call(model, parameters, args=(inputs,))
        each[name] = media_losses.answers(read, inputs)
        total = total + each[name]
        if name != "text":
            each[f"{name}' rows"] = media_losses.of_rows(model, read, inputs, batch)
            total = total + rows_weight * each[f"{name}' rows"]
    return total, {part: value.detach() for part, value in each.items()}


def _text_batches(options: argparse.Namespace, step: int) -> Iterator[MediaBatch]:
    corpus = make_corpus(options.files, options.dialogues, options.workers, text_dialogue)
    tokenizer = Tokenizer.from_file(str(options.files / "tokenizer.json"))
    model_id = tokenizer.token_to_id("model")
    source: Iterator[IntArray] = ahead(batches(corpus, options.text_tokens, options.seed + step))
    for ids in source:
        yield MediaBatch(ids, answered(ids, model_id), [], None, None, 0)


class Training:
    """A run: the model, its optimizer, and how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Start, or go on from the last run's state."""
        self.options = options
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("high")
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(options.seed)
        options.output.mkdir(parents=True, exist_ok=True)
        self.model = MediaModel(read_config(options.files))
        load_stored(self.model, options.start or options.files / "model.safetensors")
        self.model.to(self.device)
        self.optimizer = make_optimizer(self.model, options)
        self.step, self.earlier = 0, 0.0
        self.began = time.monotonic()
        if options.resume:
            state = torch.load(options.output / _STATE, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.earlier = state["step"], state["seconds"]
            random.seed(options.seed + self.step)

    @property
    def seconds(self) -> float:
        """Time of the training so far, earlier runs included."""
        return self.earlier + time.monotonic() - self.began

    @property
    def progress(self) -> float:
        """Share of the schedule that is done."""
        return min(1.0, self.seconds / float(self.options.total_seconds))

    def save(self) -> None:
        """Write what another run needs to go on, and the weights."""
        partial = self.options.output / f"{_STATE}.partial"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, partial)
        partial.replace(self.options.output / _STATE)
        save(self.model, self.options.output / "model.safetensors")

    def learn(self, parts: tuple[MediaBatch | None, ...]) -> dict[str, torch.Tensor]:
        """One step; its losses by name."""
        share = rate_at(self.step, self.progress, self.options.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * share
        late = self.progress >= self.options.quantised_from
        rounded = late and random.random() < self.options.quantised_share
        parameters = quantised_parameters(self.model, 4) if rounded else {}
        first, last = _ROWS_WEIGHT
        weight = first + (last - first) * self.progress
        total, each = step_losses(self.model, parts, parameters, weight)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]  # so it is in torch
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.step += 1
        return each

    def marks(self, examination: MediaExamination) -> dict[str, dict[str, float]]:
        """Marks in float32 and with weights as recipes store them."""
        self.model.eval()
        found = {"float": examination.mark(self.model)}
        with torch.no_grad():
            found["q4"] = examination.mark(self.model, quantised_parameters(self.model, 4))
        self.model.train()
        return found


def _summary(marks: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    names = [f"all {name.strip()}" for name in TOTALS]
    return {
        way: {name: round(table[name], 4) for name in names if name in table}
        for way, table in marks.items()
    }


def _means(steps: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Mean of each loss over the steps that have it."""
    names = {name: None for step in steps for name in step}
    return {
        name: round(float(torch.stack([one[name] for one in steps if name in one]).mean()), 4)
        for name in names
    }


def train(options: argparse.Namespace) -> None:
    """Run the training, or a part of it, and write its results."""
    run = Training(options)
    begun = time.monotonic()
    count = sum(parameter.numel() for parameter in run.model.parameters())
    print(f"{count} parameters on {run.device}", flush=True)
    sizes = (options.patches, options.sound_seconds)
    media = training_steps(options.files, options.seed, run.step, *sizes, options.workers)
    texts = _text_batches(options, run.step)
    first = (next(texts), *next(media))
    examination = MediaExamination(
        options.files, run.device, options.exam_batches, options.exam_patches, options.per_kind
    )
    print(f"data after {time.monotonic() - begun:.0f} s", flush=True)
    run.began = time.monotonic()  # the schedule counts the training alone
    first_step, marked, saved = run.step, run.began, run.began
    spent = 0.0
    ends = math.inf if options.seconds is None else begun + options.seconds - 8
    recent: list[dict[str, torch.Tensor]] = []
    with (options.output / "log.jsonl").open("a", encoding="utf-8") as log:

        def tell(entry: dict[str, Any]) -> None:
            line = json.dumps(entry)
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()

        parts: tuple[MediaBatch | None, ...] = first
        while True:
            recent.append(run.learn(parts))
            now = time.monotonic()
            done = run.progress >= 1.0 or run.step - first_step == options.steps
            done = done or now > ends - 2 * spent
            if run.step % options.log_every == 0 or done or run.step == 1:
                losses = _means(recent)
                recent = []
                tell({"step": run.step, "seconds": round(run.seconds, 1), **losses})
            if done or now - marked > options.mark_every:
                marks = run.marks(examination)
                marked = time.monotonic()
                spent = marked - now
                tell({"step": run.step, "marking": round(spent, 1), "right": _summary(marks)})
                run.began += spent
            if done or now - saved > options.save_every:
                run.save()
                saved = now
            if done:
                break
            images, heard = next(media)
            others = run.step % options.others_every == 0
            parts = (next(texts), images, heard) if others else (None, images, None)
    (options.output / "marks.json").write_text(json.dumps(marks, indent=1) + "\n")
    print(json.dumps(marks, indent=1))
