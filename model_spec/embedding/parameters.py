"""Parameters of the encoder: their sources in the checkpoint, in the order of the packed tuple."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.parameters import (
    attention_parameters,
    layer_scalar,
    matrix,
    mlp_parameters,
    vector,
)

MODEL_PROJECTION = "per_layer_model_projection"
PROJECTION = "embedding_projection"


def _within(parameter: Parameter, module: str, front: str = "") -> Parameter:
    """The same parameter, whose tensor a checkpoint has in `module` in the place of `front`."""
    (source,) = parameter.sources
    name = f"{module}.{source.name.removeprefix(f'{front}.')}"
    return replace(parameter, sources=(Source(name, source.shape),))


def _layer(plan: LayerPlan, config: Gemma4Config) -> list[Parameter]:
    prefix, hidden, ple = (
        f"layers.{plan.index}",
        config.hidden_size,
        config.hidden_size_per_layer_input,
    )
    gate, projection = f"{prefix}.per_layer_input_gate", f"{prefix}.per_layer_projection"
    injected = (
        matrix(gate, Role.PER_LAYER_LINEAR, ple, hidden),
        matrix(projection, Role.PER_LAYER_LINEAR, hidden, ple),
        vector(f"{prefix}.post_per_layer_input_norm", hidden),
    )
    return [
        vector(f"{prefix}.input_layernorm", hidden),
        *attention_parameters(f"{prefix}.self_attn", plan, hidden),
        vector(f"{prefix}.post_attention_layernorm", hidden),
        vector(f"{prefix}.pre_feedforward_layernorm", hidden),
        *mlp_parameters(f"{prefix}.mlp", hidden, plan.intermediate_size),
        vector(f"{prefix}.post_feedforward_layernorm", hidden),
        *(_within(one, f"{prefix}.ple_block", prefix) for one in injected),
        layer_scalar(prefix),
    ]


def parameter_table(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Every parameter of an encoder, in the order in which the library takes them; else none."""
    if config.embedding is None:
        return ()
    hidden, ple = config.hidden_size, config.hidden_size_per_layer_input
    columns = config.num_hidden_layers * ple
    table = [
        matrix("embed_tokens", Role.TOKEN_EMBEDDING, config.vocab_size, hidden),
        _within(matrix(MODEL_PROJECTION, Role.PER_LAYER_LINEAR, columns, hidden), "ple"),
        _within(vector("per_layer_projection_norm", ple), "ple"),
    ]
    for plan in layer_plans(config):
        table += _layer(plan, config)
    table += [
        vector("norm", hidden),
        matrix(PROJECTION, Role.PER_LAYER_LINEAR, config.embedding.dim, hidden),
    ]
    return tuple(table)
