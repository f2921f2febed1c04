"""Memory of a draft's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config


def activation_memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    """Bytes of the one position that a draft has; keys and values are the target's."""
    drafter = config.drafter
    if drafter is None:
        return ActivationMemory((), ())
    f32, item = 4, DataType(dtype).bits // 8
    hidden, inputs = f32 * drafter.hidden_size, f32 * 2 * drafter.backbone_hidden_size
    query = max(drafter.head_dim) * drafter.num_attention_heads
    layer = [hidden, hidden, f32 * query, item * query, f32 * drafter.intermediate_size]
    head = [hidden, f32 * drafter.candidates]
    if drafter.num_centroids:
        head += [f32 * drafter.candidates, f32 * drafter.num_centroids]
    together = [[inputs, hidden], layer, head]
    tensors = sorted({size for sizes in together for size in sizes})
    return ActivationMemory(tuple(tensors), tuple(tuple(sizes) for sizes in together), 1)
