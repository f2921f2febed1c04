"""The drafter's layers on its target's keys and values, and the drafters that do not fit."""

from __future__ import annotations

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text.layer_plan import layer_plans


def _sources(target: Gemma4Config) -> dict[AttentionKind, LayerPlan]:
    """The layers that a drafter reads: the last owner of each kind."""
    return {plan.kind: plan for plan in layer_plans(target) if plan.owns_kv}


def check_fit(drafter: DrafterConfig, target: Gemma4Config) -> None:
    """Refuse a drafter of another target.

    Raises
    ------
    ConfigError
        Naming what does not fit, what the target has, and what the drafter has.
    """
    pairs: list[tuple[str, object, object]] = [
        ("backbone_hidden_size", target.hidden_size, drafter.backbone_hidden_size),
        ("vocab_size", target.vocab_size, drafter.vocab_size),
    ]
    sources = _sources(target)
    for index, kind in enumerate(drafter.layer_types):
        if kind not in sources:
            known = ", ".join(sorted(one.value for one in sources))
            raise _misfit(f"layer_types[{index}]", f"one of {known}", kind.value)
        source = sources[kind]
        of_layer = f"of layer {index}, which reads layer {source.index} of the target"
        heads, dim = drafter.num_key_value_heads[index], drafter.head_dim[index]
        pairs += [
            (f"head_dim {of_layer}", source.head_dim, dim),
            (f"num_key_value_heads {of_layer}", source.num_key_value_heads, heads),
        ]
    kinds = set(drafter.layer_types)
    if AttentionKind.SLIDING in kinds:
        pairs += [
            ("sliding_window", target.sliding_window, drafter.sliding_window),
            ("rope_parameters.sliding_attention", target.sliding_rope, drafter.sliding_rope),
        ]
    if AttentionKind.FULL in kinds:
        pairs.append(("rope_parameters.full_attention", target.full_rope, drafter.full_rope))
    for name, expected, found in pairs:
        if expected != found:
            raise _misfit(name, expected, found)


def _misfit(name: str, expected: object, found: object) -> ConfigError:
    return ConfigError(
        f"the drafter does not fit its target: `{name}`: expected {expected} as in the target, "
        f"found {found}",
        hint="give the drafter of this very model: its hub id and `-assistant`; a model that was "
        "resized may have none, and replies are the same without --drafter",
    )


def drafter_plans(drafter: DrafterConfig, target: Gemma4Config) -> tuple[LayerPlan, ...]:
    """The layers of a drafter that fits; each reads the K and V of a layer of the target."""
    sources = _sources(target)
    return tuple(
        LayerPlan(
            index=index,
            kind=kind,
            num_attention_heads=drafter.num_attention_heads,
            num_key_value_heads=sources[kind].num_key_value_heads,
            head_dim=sources[kind].head_dim,
            window=sources[kind].window,
            intermediate_size=drafter.intermediate_size,
            kv_slot=sources[kind].kv_slot,
            owns_kv=False,
            value_is_key=False,
            rotary=sources[kind].rotary,
        )
        for index, kind in enumerate(drafter.layer_types)
    )
