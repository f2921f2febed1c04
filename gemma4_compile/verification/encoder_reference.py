"""transformers' encoder in float32 on given weights.

This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.embedding_gemma2.configuration_embedding_gemma2 import (
    EmbeddingGemma2TextConfig,
)
from transformers.models.embedding_gemma2.modeling_embedding_gemma2 import (
    EmbeddingGemma2TextModel,
)

from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.attention_blocks import Untyped
from gemma4_compile.verification.heads import Shapes, Weights
from gemma4_compile.verification.transformer import fill, rounded_scale

Float32Array = npt.NDArray[np.float32]


def embedded(
    read: RowReader,
    text: JsonObject,
    dtype: str,
    shapes: Shapes,
    texts: Sequence[Sequence[int]],
    device: str,
) -> Float32Array:
    """Vectors (texts, embedding_dim) of length 1: the mean of a text's rows, one text a call.

    Parameters
    ----------
    read : rows of the checkpoint's tensors, whose shapes are `shapes`
    text : the text encoder's part of `config.json`
    dtype : of the checkpoint, in which transformers has the factor of the token embedding
    """
    model: Untyped = EmbeddingGemma2TextModel(EmbeddingGemma2TextConfig(**text))
    model.config._attn_implementation = "eager"
    fill(model, "", Weights(read, shapes))
    table = model.embed_tokens
    table.embed_scale.fill_(rounded_scale(table.scalar_embed_scale, dtype))
    model = model.eval().to(device)
    found = []
    with torch.inference_mode():
        for ids in texts:
            given = torch.tensor([list(ids)], device=device)
            rows = model(input_ids=given).last_hidden_state[0]
            found.append(torch.nn.functional.normalize(rows.mean(0), dim=0).cpu().numpy())
    return np.stack(found).astype(np.float32)
