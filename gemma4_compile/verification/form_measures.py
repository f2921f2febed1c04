"""Texts of several forms on several sets of weights: how far each set is from the first one.

This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch

from gemma4_compile.types import JsonObject
from gemma4_compile.verification.distributions import compare_heads
from gemma4_compile.verification.heads import Weights, parsed
from gemma4_compile.verification.measures import Positions, TextMeasures
from gemma4_compile.verification.texts import FormText
from gemma4_compile.verification.transformer import Streamed


@dataclass(frozen=True)
class FormMeasures:
    """Measures of a set of weights by text, and over the positions of all texts."""

    texts: Mapping[str, TextMeasures]
    all: TextMeasures

    @classmethod
    def of(cls, found: Positions, texts: Sequence[FormText]) -> FormMeasures:
        """Measures of texts whose positions lie one after the other."""
        ends = list(accumulate(len(text.ids) for text in texts))
        parts = zip(texts, [0, *ends], ends, strict=False)
        return cls(
            {text.name: TextMeasures.of(found.part(slice(*span))) for text, *span in parts},
            TextMeasures.of(found),
        )


def compare_forms(
    text: JsonObject,
    weights: Sequence[Weights],
    runs: Sequence[Sequence[Streamed]],
    texts: Sequence[FormText],
    excluded: Sequence[int],
    device: str,
) -> list[FormMeasures]:
    """Compare every set of weights but the first with the first one.

    Parameters
    ----------
    text : the text decoder's `config.json`
    runs : of the texts, by set, then by text
    excluded : tokens that are left out on all sides
    """
    normed = [torch.cat([run.normed for run in own]) for own in runs]
    following = [token for one in texts for token in one.following]
    found = compare_heads(text, weights, normed, following, excluded, device)
    return [FormMeasures.of(positions, texts) for positions in found]


def state_bytes(text: JsonObject, sets: int, lengths: Sequence[int]) -> int:
    """Memory of what waits between two layers: states and per-layer inputs of sets, and masks."""
    config = parsed(text)
    per_layer = getattr(config, "hidden_size_per_layer_input", 0) or 0
    channels = config.hidden_size + config.num_hidden_layers * per_layer
    return 4 * sets * sum(lengths) * channels + 2 * sum(length**2 for length in lengths)


def layer_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of all layers' weights in float32."""
    names = (name for name in shapes if name.startswith("layers."))
    return sum(4 * prod(shapes[name]) for name in names)
