"""What a decoder layer is told of itself.

Its kind, heads, window, MLP width, and whose keys it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.model_spec.config.attention import AttentionKind


@dataclass(frozen=True)
class RotaryPlan:
    """RoPE of one attention kind.

    ``inv_freq[j] = theta ** (-2 j / head_dim)`` for ``j < pairs``; the other pairs are not rotated.
    ``offset`` is where the kind's pairs start in the rotary table of the KV state (sliding pairs
    first).
    """

    head_dim: int
    pairs: int
    theta: float
    offset: int


@dataclass(frozen=True)
class LayerPlan:
    """One decoder layer.

    ``window`` is None for full attention; ``kv_slot`` counts the layers that own K and V.
    """

    index: int
    kind: AttentionKind
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    window: int | None
    intermediate_size: int
    kv_slot: int
    owns_kv: bool
    value_is_key: bool
    rotary: RotaryPlan
