"""Held-out dialogues with media and without, marked word for word in torch.

As in `marks`, one forward pass marks a dialogue: a greedy reply equals the expected one if and only
if every token of it is the most probable after those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.func import functional_call

from tools.training.tiny.data import of_last_turns
from tools.training.tiny.dialogues import Dialogue
from tools.training.tiny.further import all_evaluation_dialogues
from tools.training.tiny.media_batches import (
    MediaBatch,
    examination_batches,
    media_batch,
)
from tools.training.tiny.media_dialogues import MediaDialogue, absent
from tools.training.tiny.media_model import Inputs, MediaModel

_BATCH = 128
_ABSENT = 60
TOTALS = ("picture", "sound", "no ", "text")
"""First words of kinds that are summed up; `text` is all others."""


def absent_dialogues(count: int, seed: int = 1) -> list[Dialogue]:
    """Held-out questions about media that are not there, all different."""
    rng, found = Random(f"absent {seed}"), dict[str, Dialogue]()
    while len(found) < count:
        dialogue = absent(rng, True)
        found[dialogue.text()] = dialogue
    return list(found.values())


def _text_batches(dialogues: Sequence[Dialogue], tokenizer: Tokenizer) -> list[MediaBatch]:
    ordered = [MediaDialogue(one, ()) for one in sorted(dialogues, key=lambda one: len(one.text()))]
    return [
        media_batch(ordered[begin : begin + _BATCH], tokenizer, 0)
        for begin in range(0, len(ordered), _BATCH)
    ]


class MediaExamination:
    """Held-out dialogues, drawn and encoded once."""

    def __init__(self, files: Path, device: str, batches: int, patches: int, per_kind: int) -> None:
        """Make `batches` of pictures and as many of sounds, and `per_kind` questions of text.

        Parameters
        ----------
        patches : of a batch of pictures, about
        """
        tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
        texts = [*all_evaluation_dialogues(per_kind), *absent_dialogues(_ABSENT)]
        made = [
            *examination_batches(files, 1, batches, patches),
            *_text_batches(texts, tokenizer),
        ]
        made = [replace(batch, wanted=of_last_turns(batch.ids, batch.wanted)) for batch in made]
        self._batches = [(batch, Inputs.of(batch, device)) for batch in made]

    @torch.no_grad()
    def mark(
        self, model: MediaModel, parameters: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, float]:
        """Share of last answers that are right word for word, by kind and by total.

        Parameters
        ----------
        parameters : what to use instead of the model's own, by name
        """
        found: dict[str, list[bool]] = {}
        for batch, inputs in self._batches:
            read = functional_call(model, dict(parameters or {}), args=(inputs,))
            wanted = inputs.ids.flatten()[inputs.places]
            wrong = (read.logits.argmax(-1) != wanted).cpu().numpy()
            dialogue = inputs.places.cpu().numpy() // batch.ids.shape[1]
            mistakes = np.bincount(dialogue, weights=wrong, minlength=len(batch.kinds))
            for kind, count in zip(batch.kinds, mistakes, strict=True):
                found.setdefault(kind, []).append(count == 0)
        totals: dict[str, list[bool]] = {name.strip(): [] for name in TOTALS}
        for kind, right in found.items():
            name = next((one for one in TOTALS if kind.startswith(one)), TOTALS[-1])
            totals[name.strip()] += right
        table = {**{f"all {name}": right for name, right in totals.items()}, **found}
        return {name: float(np.mean(right)) for name, right in table.items() if right}
