"""Memory in which blocks leave their sums that divide the keys of a short chunk (ADR 0058)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.fusion_limits import attention_options, fusion_limits
from gemma4_compile.quantization.scheme import DTYPE_BYTES
from gemma4_compile.targets.spec import TargetSpec


def divided_bytes(layers: Sequence[LayerPlan], dtype: str, target: TargetSpec) -> int:
    """Bytes of it, which all layers have in turns; 0 where none divides its keys.

    Parameters
    ----------
    dtype : of keys, values and activations
    """
    divided, options = fusion_limits(target).divided, attention_options(target)
    if divided is None:
        return 0
    most = 0
    for layer in layers:
        attention = PrefillAttention(
            CHUNK,
            layer.num_attention_heads,
            layer.num_key_value_heads,
            layer.head_dim,
            layer.window,
            dtype,
            layer.window,
            out_dtype=dtype,
            rounds_to_halves=options.rounds(layer.head_dim, dtype),
        )
        if (found := divided(attention)) is not None:
            memory = found.memory().values()
            sizes = (prod(map(int, shape)) * DTYPE_BYTES[kind] for shape, kind in memory)
            most = max(most, sum(sizes))
    return most
