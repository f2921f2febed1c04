"""transformers' eager attention, some rows of queries after the other.

Scores of 8,000 positions by 8,000 are 2 GB in each layer of E2B; a block of rows has a part of
them, and of a sliding layer only those within the window. Importing the module makes the name
known to transformers, which needs torch (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma4.modeling_gemma4 import eager_attention_forward

Untyped: TypeAlias = Any
"""Of transformers: its models, configs and what they are called with."""

BLOCKS = "gemma4_blocks"
"""As `attn_implementation`."""
BLOCK_ROWS = 256


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    **given: Untyped,
) -> tuple[torch.Tensor, None]:
    """Attention of (1, heads, T, head_dim), by a mask (1, 1, T, T) of what is seen."""
    parts = []
    for begin in range(0, query.shape[2], BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        seen = mask[:, :, rows]
        columns = seen.flatten(0, 2).any(0).nonzero()
        keys = slice(int(columns[0]), int(columns[-1]) + 1)
        seen = seen[..., keys]
        added = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
        added.masked_fill_(~seen, torch.finfo(query.dtype).min)
        inputs = (query[:, :, rows], key[:, :, keys], value[:, :, keys])
        parts.append(eager_attention_forward(module, *inputs, added, **given)[0])
    return torch.cat(parts, dim=1), None


def _mask(**given: Untyped) -> torch.Tensor:
    """What is seen, a byte each; never left out."""
    found = sdpa_mask(**{**given, "allow_is_causal_skip": False})
    assert found is not None, "nothing was skipped"
    return found


ALL_ATTENTION_FUNCTIONS.register(BLOCKS, _attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(BLOCKS, _mask)
