"""Memory of the encoder's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.layer_plan import layer_plans

CLIENT_TEXTS = 8
"""Of a call of the stock client's, which takes a row for each token of the longest of them."""


def client_texts(config: Gemma4Config, device: str) -> int | None:
    """Texts that the stock client gives to a call, at most; None where it calls no encoder."""
    return CLIENT_TEXTS if config.embedding is not None and is_of_pages(device) else None


def encoder_memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    """Bytes of a row's activations in `dtype` where they are bounded."""
    f32, item, plans = 4, DataType(dtype).bits // 8, layer_plans(config)
    hidden = f32 * config.hidden_size
    per_layer = f32 * config.num_hidden_layers * config.hidden_size_per_layer_input
    rotary = 2 * f32 * sum({plan.kind: plan.rotary.pairs for plan in plans}.values())
    query = max(plan.num_attention_heads * plan.head_dim for plan in plans)
    kept = max(plan.num_key_value_heads * plan.head_dim for plan in plans)
    projected = max(
        (plan.num_attention_heads + 2 * plan.num_key_value_heads) * plan.head_dim for plan in plans
    )
    gated = f32 * max(plan.intermediate_size for plan in plans)
    always = (hidden, hidden, per_layer, rotary)
    attention = (f32 * projected, f32 * query, item * kept, item * kept, item * query)
    together = ((*always, *attention), (*always, gated), (hidden, per_layer, per_layer))
    tensors = {size for sizes in together for size in sizes}
    return ActivationMemory(tuple(sorted(tensors)), together)
