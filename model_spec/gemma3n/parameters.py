"""The parameter table of Gemma 3n's text decoder.

Which checkpoint tensors become which model parameter, in which shape and with which scale.
"""

from __future__ import annotations

from functools import lru_cache

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.layer_plan import layer_plans, section
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.parameters import (
    Arrangement,
    Parameter,
    Role,
    Source,
    folded_scale,
)
from gemma4_compile.model_spec.text.parameters import (
    HEAD,
    MODEL_PROJECTION,
    attention_parameters,
    matrix,
    mlp_parameters,
    vector,
)
from gemma4_compile.model_spec.text.scales import per_layer_embedding_scale

EXPAND, COLLAPSE = "altup_projections", "altup_unembed_projections"
# In the order of `operators/altup.py`.
_VECTORS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "laurel.post_laurel_norm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "post_per_layer_input_norm.weight",
    "altup.router_norm.weight",
    "altup.correct_output_scale",
)


def _small(name: str, sources: tuple[Source, ...]) -> Parameter:
    """Rows so few, and deciding for so many, that they are stored as vectors are."""
    shape = sum(source.shape[0] for source in sources), sources[0].shape[1]
    return Parameter(name, Role.VECTOR, shape, sources, Arrangement.CONCAT_ROWS)


def _layer(plan: LayerPlan, config: Gemma4Config) -> list[Parameter]:
    prefix, hidden, own = f"layers.{plan.index}", config.hidden_size, section(config)
    ple, streams, altup = config.hidden_size_per_layer_input, own.streams, f"{prefix}.altup"
    vectors = tuple(Source(f"{prefix}.{name}", (hidden,)) for name in _VECTORS)
    coefs = (
        Source(f"{altup}.prediction_coefs.weight", (streams * streams, streams)),
        Source(f"{altup}.correction_coefs.weight", (streams, streams)),
    )
    router = Source(f"{altup}.modality_router.weight", (streams, hidden))
    laurel = f"{prefix}.laurel.linear"
    return [
        Parameter(
            f"{prefix}.vectors", Role.VECTOR, (len(vectors), hidden), vectors, Arrangement.STACK
        ),
        _small(f"{altup}.modality_router", (router,)),
        _small(f"{altup}.coefs", coefs),
        *attention_parameters(f"{prefix}.self_attn", plan, hidden),
        matrix(f"{laurel}_left", Role.LINEAR, own.laurel_rank, hidden),
        matrix(f"{laurel}_right", Role.LINEAR, hidden, own.laurel_rank),
        *mlp_parameters(f"{prefix}.mlp", hidden, plan.intermediate_size),
        matrix(f"{prefix}.per_layer_input_gate", Role.PER_LAYER_LINEAR, ple, hidden),
        matrix(f"{prefix}.per_layer_projection", Role.PER_LAYER_LINEAR, hidden, ple),
    ]


@lru_cache(maxsize=4)  # a plan of several libraries, or of many sizes, asks again and again
def parameter_table(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Every parameter of the model, in the order in which the packed library takes them.

    The scale of the per-layer embedding is folded into its table where that is exact, as of
    Gemma 4's. Empty for a config that is not of Gemma 3n.
    """
    if config.gemma3n is None:
        return ()
    hidden, ple = config.hidden_size, config.hidden_size_per_layer_input
    sizes, twin = (config.vocab_size, hidden), f"{HEAD}.weight" if config.ties_head else None
    columns, others = config.num_hidden_layers * ple, range(config.gemma3n.streams - 1)
    expand = tuple(Source(f"{EXPAND}.{index}.weight", (hidden, hidden)) for index in others)
    table = [
        matrix("embed_tokens", Role.TOKEN_EMBEDDING, *sizes, twin=twin),
        matrix(
            "embed_tokens_per_layer",
            Role.PER_LAYER_EMBEDDING,
            config.vocab_size_per_layer_input,
            columns,
            folded_scale(per_layer_embedding_scale(config)),
        ),
        matrix(MODEL_PROJECTION, Role.PER_LAYER_LINEAR, columns, hidden),
        vector("per_layer_projection_norm", ple),
    ]
    for plan in layer_plans(config):
        table += _layer(plan, config)
    table.append(vector("norm", hidden))
    if not config.ties_head:
        table.append(matrix(HEAD, Role.LM_HEAD, *sizes))
    shape = (len(expand) * hidden, hidden)
    table.append(Parameter(EXPAND, Role.LINEAR, shape, expand, Arrangement.CONCAT_ROWS))
    table += [matrix(f"{COLLAPSE}.{index}", Role.LINEAR, hidden, hidden) for index in others]
    return tuple(table)
