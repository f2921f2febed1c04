"""What transformers' text decoder is called with: ids, or rows of pictures and sounds among them.

This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration
from transformers.models.gemma4_unified.modeling_gemma4_unified import (
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextModel,
)

from gemma4_compile.media.inputs import Picture
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.verification.attention_blocks import Untyped

Float32Array = npt.NDArray[np.float32]

_PICTURE_TYPE, _SOUND_TYPE = 1, 3  # of rows, as transformers' processors name them


def text_alone(prompt: Prompt) -> dict[str, object]:
    """Inputs of a text."""
    return {"input_ids": torch.tensor([prompt.ids])}


def with_media(model: Untyped, prompt: Prompt, media: Sequence[Float32Array]) -> dict[str, object]:
    """Inputs of the text decoder as the whole model makes them: its `forward` does the same.

    The masks are those of `generate` with a cache of fixed size: docs/numerics.md.
    """
    ids, types = torch.tensor([prompt.ids]), torch.zeros((1, len(prompt)), dtype=torch.int64)
    for run in prompt.runs:
        where = slice(run.start, run.start + run.count)
        ids[0, where] = model.config.pad_token_id
        types[0, where] = _PICTURE_TYPE if isinstance(run.medium, Picture) else _SOUND_TYPE
    rows = model.embed_tokens(ids)
    for run, values in zip(prompt.runs, media, strict=True):
        part = values[run.first : run.first + run.count]
        rows[0, run.start : run.start + run.count] = torch.from_numpy(part)
    unified = isinstance(model, Gemma4UnifiedTextModel)
    whole: Untyped = (
        Gemma4UnifiedForConditionalGeneration if unified else Gemma4ForConditionalGeneration
    )
    places = torch.arange(len(prompt))[None]
    masks = whole.create_masks_for_generate(
        model.config, rows, None, None, places, mm_token_type_ids=types
    )
    given: dict[str, object] = {"inputs_embeds": rows, "attention_mask": masks}
    if getattr(model, "embed_tokens_per_layer", None) is not None:
        given["per_layer_inputs"] = model.get_per_layer_inputs(ids)
    return given
