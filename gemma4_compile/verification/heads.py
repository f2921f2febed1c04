"""Sets of weights that transformers runs on, and logits by their heads, block by block.

This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextModel
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedTextModel

from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.attention_blocks import Untyped
from gemma4_compile.verification.static_rounding import Steps, rounded

Float32Array = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]

HEAD_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True)
class Weights:
    """A set of weights of one model.

    Attributes
    ----------
    read : reads rows of a checkpoint tensor, by its name without prefix
    shapes : of those tensors
    version : of a tensor by its name: where two sets give the same, it has the same values in both;
        None: no tensor is another set's
    """

    read: RowReader
    shapes: Shapes
    version: Callable[[str], Hashable] | None = None

    def version_of(self, name: str) -> Hashable:
        """What a tensor's values are known by."""
        return id(self) if self.version is None else self.version(name)


_TEXT_MODELS: Mapping[str, Untyped] = {
    "gemma4_text": Gemma4TextModel,
    "gemma4_unified_text": Gemma4UnifiedTextModel,
    "gemma3n_text": Gemma3nTextModel,
}


def text_model(text: JsonObject) -> Untyped:
    """Transformers' class of a text decoder."""
    return _TEXT_MODELS[text["model_type"]]


def parsed(text: JsonObject) -> Untyped:
    """Transformers' config of a text decoder, with its defaults."""
    return text_model(text).config_class(**text)


def head(normed: torch.Tensor, text: JsonObject, weights: Weights) -> Float32Array:
    """Logits of (positions, hidden_size) by the head, then ``cap * tanh(x / cap)``."""
    config = parsed(text)
    vocab_size, cap = config.vocab_size, config.final_logit_softcapping
    logits = np.empty((normed.shape[0], vocab_size), np.float32)
    block = max(1, HEAD_BLOCK_BYTES // (4 * normed.shape[1]))
    for begin in range(0, vocab_size, block):
        end = min(begin + block, vocab_size)
        rows = head_rows(weights, begin, end)
        logits[:, begin:end] = logits_of(normed, rows, weights, cap).numpy()
    return logits


def head_name(weights: Weights) -> str:
    """Name of the tensor that the head multiplies by."""
    own = f"{HEAD}.weight"
    return own if own in weights.shapes else "embed_tokens.weight"


def head_rows(weights: Weights, begin: int, end: int) -> torch.Tensor:
    """Rows of the head."""
    return torch.from_numpy(np.ascontiguousarray(weights.read(head_name(weights), begin, end)))


def logits_of(
    normed: torch.Tensor, rows: torch.Tensor, weights: Weights, cap: float | None
) -> torch.Tensor:
    """Logits of some rows of the head, as the model returns them."""
    steps = Steps.of(HEAD, weights.read, weights.shapes)
    return capped(rounded(rounded(normed, steps.inputs) @ rows.T, steps.outputs), cap)


def capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Logits as the model returns them."""
    return logits if cap is None else torch.tanh(logits / cap) * cap
