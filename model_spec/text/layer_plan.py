"""The plan of each decoder layer, resolved once from the config."""

from __future__ import annotations

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind, RopeParameters
from gemma4_compile.model_spec.config.kv_sharing import kv_sources
from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.layers.plan import LayerPlan, RotaryPlan


def _rotary_plan(rope: RopeParameters, head_dim: int, offset: int) -> RotaryPlan:
    """`proportional` rotates the first ``factor * head_dim / 2`` pairs; the divisor stays."""
    if rope.rope_type == "proportional":
        pairs = int(rope.partial_rotary_factor * head_dim // 2)
    else:
        pairs = head_dim // 2
    return RotaryPlan(head_dim=head_dim, pairs=pairs, theta=rope.rope_theta, offset=offset)


def _head_dim_of(config: TextConfig, kind: AttentionKind) -> int | None:
    """The head_dim that all layers of `kind` share, or None when there is no such layer."""
    found = {
        dim for dim, layer in zip(config.head_dim, config.layer_types, strict=True) if layer is kind
    }
    if len(found) > 1:
        raise ConfigError(
            f"layers of kind `{kind.value}` have different head_dim: {sorted(found)}",
            hint="one head_dim per attention kind is supported",
        )
    return found.pop() if found else None


def rotary_plans(config: TextConfig) -> dict[AttentionKind, RotaryPlan]:
    """The rotary table's kinds in the order in which it holds their pairs: sliding, then full."""
    plans: dict[AttentionKind, RotaryPlan] = {}
    offset = 0
    for kind, rope in (
        (AttentionKind.SLIDING, config.sliding_rope),
        (AttentionKind.FULL, config.full_rope),
    ):
        head_dim = _head_dim_of(config, kind)
        if head_dim is not None:
            plans[kind] = _rotary_plan(rope, head_dim, offset)
            offset += plans[kind].pairs
    return plans


def layer_plans(config: TextConfig) -> tuple[LayerPlan, ...]:
    """Resolve every layer.

    The last ``num_kv_shared_layers`` layers own no K and V: each reads those of the last owning
    layer of its own kind.

    Raises
    ------
    ConfigError
        If a shared layer has no owning layer of its kind before it, or its heads do not fit that
        layer's.

    References
    ----------
    transformers 5.24.0, models/gemma4/modeling_gemma4.py, `Gemma4TextAttention`.
    """
    rotary = rotary_plans(config)
    sources = kv_sources(config.layer_types, config.num_kv_shared_layers)
    plans: list[LayerPlan] = []
    for index, (kind, source_index) in enumerate(zip(config.layer_types, sources, strict=True)):
        if source_index is None:
            raise ConfigError(
                f"layer {index} shares keys and values, but no layer of kind `{kind.value}` "
                "before the layers that share owns any",
                hint="check `num_kv_shared_layers` and `layer_types`",
            )
        owns_kv = source_index == index
        source = None if owns_kv else plans[source_index]
        heads = (config.num_key_value_heads[index], config.head_dim[index])
        if source is not None and heads != (source.num_key_value_heads, source.head_dim):
            raise ConfigError(
                f"layer {index} reads the keys of layer {source.index}, but its KV heads x "
                f"head_dim are {heads}, not {(source.num_key_value_heads, source.head_dim)}"
            )
        wide = config.use_double_wide_mlp and not owns_kv
        plan = LayerPlan(
            index=index,
            kind=kind,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads[index],
            head_dim=config.head_dim[index],
            window=config.sliding_window if kind is AttentionKind.SLIDING else None,
            intermediate_size=config.intermediate_size * (2 if wide else 1),
            kv_slot=index if source is None else source.kv_slot,
            owns_kv=owns_kv,
            value_is_key=config.attention_k_eq_v and kind is AttentionKind.FULL,
            rotary=rotary[kind],
        )
        plans.append(plan)
    return tuple(plans)
