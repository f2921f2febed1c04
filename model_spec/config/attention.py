"""Attention in `config.json`: kinds of layers, heads, rotary embeddings.

The text decoder's and a drafter's config say it in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.keys import FULL_ATTENTION_EVERY

MAX_HEADS = 1 << 10
MAX_HEAD_DIM = 1 << 12
_ROPE_KEYS: Mapping[str, str] = dict.fromkeys(
    (
        *("rope_type", "type", "rope_theta", "factor", "partial_rotary_factor"),
        *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
        *("mscale", "mscale_all_dim", "truncate", "mrope_section"),
    ),
    "of other kinds of rotary embeddings; transformers reads it for those alone",
)


class AttentionKind(str, Enum):
    """Keys that a layer's queries see."""

    SLIDING = "sliding_attention"
    FULL = "full_attention"


@dataclass(frozen=True)
class RopeParameters:
    """Rotary embedding of one attention kind; the default type has factor 1.0."""

    rope_type: str
    rope_theta: float
    partial_rotary_factor: float


def read_ropes(text: ConfigFields) -> tuple[RopeParameters, RopeParameters]:
    """The rotary embeddings of sliding and of full layers, of the section that says both.

    `rope_scaling`, the older name of `rope_parameters`, holds where there are both.

    Raises
    ------
    ConfigError
        Naming a rotary embedding that is scaled in another way than Gemma 4's.
    """
    for name in ("rope_parameters", "rope_theta", "partial_rotary_factor"):
        text.get(name)  # known keys, whichever holds
    parent = text.fields("rope_scaling" if text.get("rope_scaling") else "rope_parameters")
    kinds = (AttentionKind.SLIDING, AttentionKind.FULL)
    if not any(kind.value in parent.names() for kind in kinds):
        raise ConfigError(
            f"config key `{parent.key(kinds[0].value)}` is missing: Gemma 4 has an entry for each "
            "kind of layers there, and transformers does not load this either",
            hint="take `rope_parameters`, and no `rope_scaling`, from the config.json of the model "
            "that was trained",
        )
    sliding, full = (_read_rope(text, parent, kind) for kind in kinds)
    parent.refuse_unknown(_ROPE_KEYS)
    return sliding, full


def _read_rope(text: ConfigFields, parent: ConfigFields, kind: AttentionKind) -> RopeParameters:
    fields = parent.fields(kind.value)
    known = ("default",) if kind is AttentionKind.SLIDING else ("default", "proportional")
    given = [found for key in ("rope_type", "type") if (found := fields.get(key)) is not None]
    rope_type = given[0] if given else "default"
    if not isinstance(rope_type, str) or rope_type not in known:
        raise _scaled(fields, "rope_type", f"one of {', '.join(known)}", rope_type)
    theta = fields.number("rope_theta", 1.0, 1e12)
    share, name = 1.0, "partial_rotary_factor"
    if rope_type == "proportional":
        places = [place for place in (fields, text) if place.get(name) is not None]
        share = places[0].number(name, 0.0, 1.0) if places else share
        if fields.get("factor") not in (None, 1):
            raise _scaled(fields, "factor", "1", fields.get("factor"))
    fields.refuse_unknown(_ROPE_KEYS)
    return RopeParameters(rope_type, theta, share)


def _scaled(fields: ConfigFields, name: str, expected: str, found: object) -> ConfigError:
    return ConfigError(
        f"config key `{fields.key(name)}`: expected {expected}, found {str(found)[:40]!r}",
        hint="take `rope_parameters` from the config.json of the model that was trained: rotary "
        "embeddings that are scaled for longer texts are not compiled",
    )


def read_layer_types(
    text: ConfigFields, count: int, full_every: int = FULL_ATTENTION_EVERY
) -> tuple[AttentionKind, ...]:
    """The attention kind of every layer; the last is full attention.

    `full_every` : where the config names none, one of so many is
    """
    kinds = read_layer_kinds(text, count, full_every)
    return (*kinds[:-1], AttentionKind.FULL)  # transformers forces it


def read_layer_kinds(text: ConfigFields, count: int, full_every: int) -> tuple[AttentionKind, ...]:
    """The attention kind of every layer; where it is not given, each `full_every`-th is full."""
    kinds = []
    declared: list[object] = [
        (AttentionKind.SLIDING if (index + 1) % full_every else AttentionKind.FULL).value
        for index in range(count)
    ]
    if text.get("layer_types") is not None:
        declared = text.array("layer_types", count)
    for index, value in enumerate(declared):
        if value not in (AttentionKind.SLIDING.value, AttentionKind.FULL.value):
            raise ConfigError(
                f"config key `{text.key('layer_types')}[{index}]`: "
                f"expected sliding_attention or full_attention, found {value!r}"
            )
        kinds.append(AttentionKind(value))
    return tuple(kinds)


def read_heads(
    text: ConfigFields, kinds: tuple[AttentionKind, ...], k_eq_v: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """KV heads and head_dim of every layer, from either form of the file."""
    kv_heads = [text.integer("num_key_value_heads", 1, MAX_HEADS)] * len(kinds)
    head_dim = [text.integer("head_dim", 2, MAX_HEAD_DIM)] * len(kinds)
    if text.get("per_layer_config") is not None:
        overrides = text.fields("per_layer_config")
        seen: set[int] = set()
        for name in overrides.names():
            is_number = isinstance(name, str) and re.fullmatch("[0-9]{1,4}", name) is not None
            index = int(name) if is_number else -1
            if not 0 <= index < len(kinds) or index in seen:
                raise ConfigError(
                    f"config key `{overrides.key(str(name))}`: "
                    f"expected each layer number from 0 to {len(kinds) - 1} at most once"
                )
            seen.add(index)
            layer = overrides.fields(name)
            head_dim[index] = layer.optional_integer("head_dim", 2, MAX_HEAD_DIM) or head_dim[index]
            kv_heads[index] = (
                layer.optional_integer("num_key_value_heads", 1, MAX_HEADS) or kv_heads[index]
            )
            layer.refuse_unknown({})
        _check_older_form(text, "global_head_dim", head_dim, kinds)
        text.optional_integer("num_global_key_value_heads", 1, MAX_HEADS)
        if k_eq_v:  # else nobody reads it
            _check_older_form(text, "num_global_key_value_heads", kv_heads, kinds)
    else:
        global_dim = text.integer("global_head_dim", 2, MAX_HEAD_DIM)
        name = "num_global_key_value_heads"
        read = text.integer if text.has_default(name) else text.optional_integer
        global_heads = read(name, 1, MAX_HEADS)
        for index, kind in enumerate(kinds):
            if kind is AttentionKind.FULL:
                head_dim[index] = global_dim
                if k_eq_v and global_heads is not None:  # transformers counts it only then
                    kv_heads[index] = global_heads
    return tuple(kv_heads), tuple(head_dim)


def _check_older_form(
    text: ConfigFields, name: str, read: Sequence[int], kinds: tuple[AttentionKind, ...]
) -> None:
    """A key of the form without `per_layer_config`, as other programs want it beside that.

    transformers does not read it there; ConfigError where it says something else.
    """
    given = text.optional_integer(name, 1, MAX_HEAD_DIM)
    full = {value for value, kind in zip(read, kinds, strict=True) if kind is AttentionKind.FULL}
    if given is not None and full != {given}:
        raise ConfigError(
            f"config keys `{text.key('per_layer_config')}` and `{text.key(name)}` differ: layers "
            f"of full attention have {' and '.join(map(str, sorted(full)))} by the first, {given} "
            "by the second",
            hint="transformers reads the first alone: if it is right, leave the second out",
        )
