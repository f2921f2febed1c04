"""transformers' EmbeddingGemma 2 at `tiny-embedding`'s sizes, its files, and its embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model

from gemma4_compile.tiny.safetensors_file import write_safetensors
from tools.training.tiny.model import SHIPPED_FILES

SIZES = (128, 64, 32)
"""Matryoshka sizes: the first channels of an embedding are one, too."""

_TEXT: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "sliding_window_pattern": 4,
    "sliding_window": 16,
    "max_position_embeddings": 1024,
    "hidden_size_per_layer_input": 32,
    "embedding_dim": SIZES[0],
}
_TOKENS = {
    "boi_token_id": 11,
    "eoi_token_id": 12,
    "image_token_id": 13,
    "video_token_id": 14,
    "boa_token_id": 15,
    "eoa_token_index": 16,
    "audio_token_id": 17,
}


def config() -> EmbeddingGemma2Config:
    """The model's config: text alone."""
    create: Any = EmbeddingGemma2Config
    made: EmbeddingGemma2Config = create(
        text_config=dict(_TEXT),
        vision_config=None,
        audio_config=None,
        architectures=["EmbeddingGemma2Model"],
        dtype="bfloat16",
        **_TOKENS,
    )
    return made


def build() -> Any:
    """A fresh float32 model; the layers' scalars are trained, too, unlike in transformers."""
    create: Any = EmbeddingGemma2Model._from_config
    model = create(config(), attn_implementation="sdpa", dtype=torch.float32)
    for layer in model.language_model.layers:
        scalar = layer.layer_scalar.detach().clone()
        del layer.layer_scalar
        layer.layer_scalar = nn.Parameter(scalar)
    return model


def tokenizer() -> Tokenizer:
    """`tiny`'s, which gives ids without `<bos>` and `<eos>`."""
    return Tokenizer.from_file(str(SHIPPED_FILES / "tokenizer.json"))


def encoded(reader: Tokenizer, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T) of texts between `<bos>` and `<eos>`, padded at the end, and their mask (B, T)."""
    begin, end, pad = (reader.token_to_id(name) for name in ("<bos>", "<eos>", "<pad>"))
    rows = [
        [begin, *one.ids, end] for one in reader.encode_batch(list(texts), add_special_tokens=False)
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def pooled(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean (B, embedding_dim) of the rows (B, T, embedding_dim) that the mask (B, T) keeps."""
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def embeddings(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, size: int = SIZES[0]
) -> torch.Tensor:
    """Normalised embeddings (B, size) of ids and mask (B, T)."""
    hidden = model.language_model(input_ids=ids, attention_mask=mask).last_hidden_state
    return functional.normalize(pooled(hidden, mask)[:, :size], dim=-1)


def save(model: Any, folder: Path) -> None:
    """Write config and weights (bfloat16) as transformers saves them."""
    text = config().to_json_string()
    (folder / "config.json").write_text(text, encoding="utf-8", newline="\n")
    tensors = {
        name: value.detach().float().cpu().numpy()
        for name, value in sorted(model.state_dict().items())
    }
    write_safetensors(folder / "model.safetensors", tensors, "bfloat16")
