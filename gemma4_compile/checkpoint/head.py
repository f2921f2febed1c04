"""A head beside the token embedding: a copy of it, or a matrix of its own.

Where a checkpoint's config ties the two and its files hold both, transformers looks at the values:
equal ones are tied, others are not, whatever the config says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gemma4_compile.checkpoint.safetensors_file import FLOAT_DTYPES, TensorInfo, read_rows
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.checkpoint.spellings import usual_tensors
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.options.process import warn
from gemma4_compile.quantization.convert import row_blocks

_EMBEDDING, _HEAD = "embed_tokens.weight", f"{HEAD}.weight"


def with_head(config: Gemma4Config, tensors: Mapping[str, TensorInfo]) -> Gemma4Config:
    """The config of a checkpoint, with a head of its own where its files hold another than is tied.

    A checkpoint for phones holds both, as its head has steps besides; equal ones are one matrix.

    Whether they fit the config otherwise is left to `match`.

    Raises
    ------
    CheckpointError
        If a file cannot be read or changed since its header was read, or as `usual_tensors`.
    """
    if not (config.ties_head or config.rounds_activations):
        return config
    given = usual_tensors(tensors, TEXT.prefixes[0])
    embedding, head = (given.get(TEXT.tensor_name(name)) for name in (_EMBEDDING, _HEAD))
    if not config.ties_head:
        is_one = embedding is not None and head is not None and _are_one(embedding, head)
        return replace(config, ties_head=is_one)
    if embedding is None or head is None or _same(embedding, head):
        return config
    warn(
        f"`{head.name}` and `{embedding.name}` have different values, though config.json ties "
        "them: the head is taken as one of its own, as transformers takes it",
        "`tie_word_embeddings: false` in config.json says the same",
    )
    return replace(config, ties_head=False)


def _are_one(embedding: TensorInfo, head: TensorInfo) -> bool:
    """Return whether two computed matrices are the same, by what they are computed from if it is.

    Of 262,144 rows that takes a hundredth of the time of computing both.
    """
    if embedding.shape != head.shape or embedding.decoder is None or head.decoder is None:
        return False
    pairs = list(zip(embedding.stored, head.stored, strict=False))
    is_alike = type(embedding.decoder) is type(head.decoder)
    return is_alike and all(holds_same(one, other) for one, other in pairs)


def _same(first: TensorInfo, second: TensorInfo) -> bool:
    """Return whether two matrices have the same values, or cannot both be heads of a model."""
    comparable = all(len(one.shape) == 2 and one.dtype in FLOAT_DTYPES for one in (first, second))
    if first.shape != second.shape or not comparable:
        return True
    for begin, end in row_blocks(first.shape):
        one, other = (read_rows(tensor, begin, end) for tensor in (first, second))
        if not np.array_equal(one, other, equal_nan=True):
            return False
    return True
