"""Memory of the decoder's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.layer_plan import layer_plans, section


def activation_memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    """Bytes of a position's activations in `dtype` where they are bounded."""
    f32, item, own = 4, DataType(dtype).bits // 8, section(config)
    plans = layer_plans(config)
    hidden = f32 * config.hidden_size
    streams, others = own.streams * hidden, (own.streams - 1) * hidden
    query = max(plan.num_attention_heads * plan.head_dim for plan in plans)
    projected = max(
        (plan.num_attention_heads + 2 * plan.num_key_value_heads) * plan.head_dim for plan in plans
    )
    inputs = f32 * config.num_hidden_layers * config.hidden_size_per_layer_input
    gated = f32 * max(plan.intermediate_size for plan in plans)
    pairs = 2 * gated if any(own.sparsities) else 0
    # Streams are planned where the MLP's vectors are at other times, which may be larger.
    large = max(streams, gated)
    normed, laurel = item * config.hidden_size, f32 * own.laurel_rank
    attention = [f32 * projected, f32 * query, item * query]
    together = [
        [hidden, others, streams, inputs],
        [hidden, inputs, inputs, inputs, item * query],
        [streams, streams, hidden, inputs, normed, laurel, *attention],
        [large, large, large, pairs, hidden, hidden, inputs, normed],
    ]
    tensors = sorted({size for sizes in together for size in sizes if size})
    return ActivationMemory(tuple(tensors), tuple(tuple(sizes) for sizes in together))
