"""Exact-match accuracy by kind of question, in torch.

A greedy reply equals the expected one if and only if every token of the expected one is the most
probable after the tokens before it, so one forward pass marks a dialogue; nothing is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.func import functional_call

from tools.training.tiny.data import answered, of_last_turns, padded
from tools.training.tiny.dialogues import Dialogue

BATCH = 256


class Examination:
    """Held-out dialogues, encoded once."""

    def __init__(self, dialogues: Sequence[Dialogue], files: Path) -> None:
        """Encode the dialogues with the tokenizer of `files`."""
        tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
        model_id = tokenizer.token_to_id("model")
        texts = [dialogue.text() for dialogue in dialogues]
        encoded = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
        order = np.argsort([len(ids) for ids in encoded], kind="stable")
        self._kinds = [dialogues[index].turns[-1].kind for index in order]
        self._batches = []
        for begin in range(0, len(order), BATCH):
            ids = padded([np.asarray(encoded[i]) for i in order[begin : begin + BATCH]])
            self._batches.append((ids, of_last_turns(ids, answered(ids, model_id))))

    @torch.no_grad()
    def mark(
        self, model: Any, parameters: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, float]:
        """Share of last answers that are right word for word, by kind, and their mean as `all`.

        Parameters
        ----------
        parameters : what to use instead of the model's own, by name
        """
        device = next(model.parameters()).device
        right = []
        for ids, wanted in self._batches:
            tokens = torch.from_numpy(ids).to(device)
            inputs = {"input_ids": tokens, "use_cache": False}
            logits = functional_call(model, dict(parameters or {}), kwargs=inputs, args=()).logits
            same = (logits[:, :-1].argmax(-1) == tokens[:, 1:]).cpu().numpy()
            right += list((same | ~wanted[:, 1:]).all(axis=1))
        table = {
            kind: float(np.mean([r for r, k in zip(right, self._kinds, strict=True) if k == kind]))
            for kind in dict.fromkeys(self._kinds)
        }
        return {"all": float(np.mean(right)), **table}
