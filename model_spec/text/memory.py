"""Memory of the text decoder's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.text.layer_plan import layer_plans


def activation_memory(config: TextConfig, dtype: str) -> ActivationMemory:
    """Bytes of a position's activations in `dtype` where they are bounded."""
    f32, item = 4, DataType(dtype).bits // 8
    plans = layer_plans(config)
    hidden = f32 * config.hidden_size
    query = max(plan.num_attention_heads * plan.head_dim for plan in plans)
    projected = max(
        (plan.num_attention_heads + (2 - plan.value_is_key) * plan.num_key_value_heads)
        * plan.head_dim
        for plan in plans
    )
    attention = [f32 * projected, f32 * query, item * query]
    gated = f32 * max(plan.intermediate_size for plan in plans)
    together = [[hidden, hidden, *attention, gated]]
    if config.num_experts:
        outputs = f32 * config.top_k_experts * config.hidden_size
        gated_pairs = f32 * config.top_k_experts * config.moe_intermediate_size
        together.append([hidden, hidden, *attention[1:], outputs, outputs, gated_pairs])
    if config.hidden_size_per_layer_input:
        inputs = f32 * config.num_hidden_layers * config.hidden_size_per_layer_input
        together[0].append(inputs)
        # The tables' splits are added up from one tensor into another, and one of the layers'
        # widest tensors is planned beside these.
        widest = item * max(query // f32, gated // f32)
        together.append([hidden, hidden, inputs, inputs, inputs, widest])
    tensors = sorted({size for sizes in together for size in sizes})
    return ActivationMemory(tuple(tensors), tuple(tuple(sizes) for sizes in together))
