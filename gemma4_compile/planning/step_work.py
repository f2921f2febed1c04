"""Counts what a token and a prompt do at least, from the plan of a model's parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import prod

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.kv_cache import ITEM_BYTES
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.package.step_work import AttentionWork, StepWork
from gemma4_compile.planning.parameter_kinds import read_per_token
from gemma4_compile.quantization.recipe import StoredParameter

_LAYER = re.compile(r"layers\.(\d+)\.")
_MAKES_KEYS = ".self_attn.qkv_proj"
_OF_LAST_ROW = re.compile(r"altup_unembed_projections\b")
"""Outside of the layers, of Gemma 3n."""


def count_step_work(
    config: Gemma4Config, stored: Sequence[StoredParameter], kv_dtype: str
) -> StepWork:
    """Count the work of a decoder's steps.

    Behind the last layer that makes keys and values nobody reads other rows of a chunk than its
    last one, so that no other is computed there. That layer's own attention is of the last row,
    too. Norms, gates, the softmax and what quantised weights take to unpack are not counted.

    Parameters
    ----------
    stored : the model's own parameters
    kv_dtype : of keys and values in the state
    """
    plans = layer_plans(config)
    cut = max(plan.index for plan in plans if plan.owns_kv)
    products = [(one.parameter, prod(one.parameter.shape)) for one in stored]
    of_each = [(p, size) for p, size in products if _is_of_each_row(p, cut)]
    of_last = [(p, size) for p, size in products if not _is_of_each_row(p, cut)]
    return StepWork(
        weight_bytes=read_per_token(
            config, ((one.parameter, sum(t.nbytes for t in one.tensors)) for one in stored)
        ),
        products=read_per_token(config, of_each),
        chunk_products=read_per_token(config, of_last),
        attention=_attention(plans, cut, ITEM_BYTES[kv_dtype]),
    )


def _is_of_each_row(parameter: Parameter, cut: int) -> bool:
    """Return whether every row of a chunk is multiplied by it."""
    layer = _LAYER.match(parameter.name)
    if layer is None:
        is_head = parameter.role in {Role.TOKEN_EMBEDDING, Role.LM_HEAD}
        return not is_head and not _OF_LAST_ROW.match(parameter.name)
    index = int(layer[1])
    return index < cut or (index == cut and _MAKES_KEYS in parameter.name)


def _attention(plans: Sequence[LayerPlan], cut: int, item_bytes: int) -> tuple[AttentionWork, ...]:
    layers: Counter[tuple[int, int, int | None]] = Counter()
    whole: Counter[tuple[int, int, int | None]] = Counter()
    for plan in plans:
        width = plan.num_attention_heads * plan.head_dim
        kv_bytes = 2 * plan.num_key_value_heads * plan.head_dim * item_bytes
        layers[width, kv_bytes, plan.window] += 1
        whole[width, kv_bytes, plan.window] += plan.index < cut
    return tuple(
        AttentionWork(count, whole[width, kv_bytes, window], width, kv_bytes, window)
        for (width, kv_bytes, window), count in layers.items()
    )
