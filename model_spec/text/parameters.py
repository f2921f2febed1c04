"""The parameter table of the text decoder.

Which checkpoint tensors become which model parameter, in which shape and with which scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.parameters import (
    Arrangement,
    Parameter,
    Role,
    Source,
    folded_scale,
    steps_name,
    steps_of,
)
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.scales import per_layer_embedding_scale

HEAD = "lm_head"
"""Name of the head's parameter, and of its tensor before `.weight`."""
MODEL_PROJECTION = "per_layer_model_projection"
_STEPPED = (Role.LINEAR, Role.PER_LAYER_LINEAR, Role.LM_HEAD)


def matrix(
    name: str,
    role: Role,
    rows: int,
    cols: int,
    scale: float = 1.0,
    *,
    twin: str | None = None,
) -> Parameter:
    """A matrix of one tensor."""
    source = Source(f"{name}.weight", (rows, cols), twin=twin)
    return Parameter(name, role, (rows, cols), (source,), scale=scale)


def vector(name: str, size: int) -> Parameter:
    """A vector of one tensor."""
    return Parameter(name, Role.VECTOR, (size,), (Source(f"{name}.weight", (size,)),))


def _concat(name: str, sources: tuple[Source, ...]) -> Parameter:
    rows = sum(source.shape[0] for source in sources)
    return Parameter(
        name, Role.LINEAR, (rows, sources[0].shape[1]), sources, Arrangement.CONCAT_ROWS
    )


def attention_parameters(prefix: str, plan: LayerPlan, hidden: int) -> list[Parameter]:
    """Projections and norms of one layer's attention."""
    q_rows = plan.num_attention_heads * plan.head_dim
    kv_rows = plan.num_key_value_heads * plan.head_dim
    sources = [Source(f"{prefix}.q_proj.weight", (q_rows, hidden))]
    if plan.owns_kv:
        sources.append(Source(f"{prefix}.k_proj.weight", (kv_rows, hidden)))
        if not plan.value_is_key:
            sources.append(Source(f"{prefix}.v_proj.weight", (kv_rows, hidden)))
    table = [
        _concat(f"{prefix}.qkv_proj", tuple(sources)),
        vector(f"{prefix}.q_norm", plan.head_dim),
    ]
    if plan.owns_kv:
        table.append(vector(f"{prefix}.k_norm", plan.head_dim))
    table.append(matrix(f"{prefix}.o_proj", Role.LINEAR, hidden, q_rows))
    return table


def _vectors(name: str, sources: tuple[str, ...], size: int) -> Parameter:
    """Vectors that a kernel reads together: one binding for all of them."""
    found = tuple(Source(source, (size,)) for source in sources)
    return Parameter(name, Role.VECTOR, (len(found), size), found, Arrangement.STACK)


def _stack(name: str, experts: int, rows: int, cols: int, arrangement: Arrangement) -> Parameter:
    """The experts' matrices, one after the other."""
    source = Source(name, (experts, rows, cols))
    shape = (experts * rows, cols)
    return Parameter(name, Role.EXPERTS, shape, (source,), arrangement, row_group=rows)


def _experts(prefix: str, config: TextConfig) -> list[Parameter]:
    hidden, experts, width = config.hidden_size, config.num_experts, config.moe_intermediate_size
    router = f"{prefix}.router"

    def plain_vector(name: str, size: int) -> Parameter:
        return Parameter(name, Role.VECTOR, (size,), (Source(name, (size,)),))

    projection = Source(f"{router}.proj.weight", (experts, hidden))
    halves, copy = Arrangement.INTERLEAVE_HALVES, Arrangement.COPY
    # What the dense MLP, the router and the experts begin with: the order of `RoutedNorm`.
    before = (
        f"{prefix}.post_attention_layernorm.weight",
        f"{prefix}.pre_feedforward_layernorm.weight",
        f"{router}.scale",
        f"{prefix}.pre_feedforward_layernorm_2.weight",
    )
    # Norms of the dense branch, of the experts' branch and of their sum.
    after = tuple(f"{prefix}.post_feedforward_layernorm{end}.weight" for end in ("_1", "_2", ""))
    return [
        _vectors(f"{prefix}.pre_feedforward_vectors", before, hidden),
        Parameter(f"{router}.proj", Role.ROUTER, (experts, hidden), (projection,)),
        plain_vector(f"{router}.per_expert_scale", experts),
        _stack(f"{prefix}.experts.gate_up_proj", experts, 2 * width, hidden, halves),
        _stack(f"{prefix}.experts.down_proj", experts, hidden, width, copy),
        _vectors(f"{prefix}.post_feedforward_layernorms", after, hidden),
    ]


def _norms_before(prefix: str, hidden: int) -> list[Parameter]:
    """The norms between attention and the MLP, where no expert begins with them, too."""
    names = ("post_attention_layernorm", "pre_feedforward_layernorm")
    return [vector(f"{prefix}.{name}", hidden) for name in names]


def mlp_parameters(prefix: str, hidden: int, width: int) -> list[Parameter]:
    """Matrices of the gated MLP: rows of gate and up by turns."""
    sources = tuple(
        Source(f"{prefix}.{name}_proj.weight", (width, hidden)) for name in ("gate", "up")
    )
    shape = (2 * width, hidden)
    gate_up = f"{prefix}.gate_up_proj"
    return [
        Parameter(gate_up, Role.LINEAR, shape, sources, Arrangement.INTERLEAVE_ROWS),
        matrix(f"{prefix}.down_proj", Role.LINEAR, hidden, width),
    ]


def layer_scalar(prefix: str) -> Parameter:
    """The scalar at a layer's end."""
    scalar = f"{prefix}.layer_scalar"
    return Parameter(scalar, Role.VECTOR, (1,), (Source(scalar, (1,)),))


def _layer(plan: LayerPlan, config: TextConfig) -> list[Parameter]:
    prefix, hidden, width = f"layers.{plan.index}", config.hidden_size, plan.intermediate_size
    table = [
        vector(f"{prefix}.input_layernorm", hidden),
        *attention_parameters(f"{prefix}.self_attn", plan, hidden),
        *(() if config.num_experts else _norms_before(prefix, hidden)),
        *mlp_parameters(f"{prefix}.mlp", hidden, width),
    ]
    if config.num_experts:
        table += _experts(prefix, config)
    else:
        table.append(vector(f"{prefix}.post_feedforward_layernorm", hidden))
    ple = config.hidden_size_per_layer_input
    if ple:
        table += [
            matrix(f"{prefix}.per_layer_input_gate", Role.PER_LAYER_LINEAR, ple, hidden),
            matrix(f"{prefix}.per_layer_projection", Role.PER_LAYER_LINEAR, hidden, ple),
            vector(f"{prefix}.post_per_layer_input_norm", hidden),
        ]
    table.append(layer_scalar(prefix))
    return table


@lru_cache(maxsize=4)  # a plan of several libraries, or of many sizes, asks again and again
def parameter_table(config: TextConfig) -> tuple[Parameter, ...]:
    """Every parameter of the model, in the order in which the packed library takes them.

    The scale of the per-layer embedding is folded into its table where that is exact (16 for 256
    columns). The token embedding keeps its values: a tied head must not see the scale.
    """
    hidden, ple = config.hidden_size, config.hidden_size_per_layer_input
    sizes, twin = (config.vocab_size, hidden), f"{HEAD}.weight" if config.ties_head else None
    table = [matrix("embed_tokens", Role.TOKEN_EMBEDDING, *sizes, twin=twin)]
    if ple:
        columns = config.num_hidden_layers * ple
        scale = folded_scale(per_layer_embedding_scale(config))
        table += [
            matrix(
                "embed_tokens_per_layer",
                Role.PER_LAYER_EMBEDDING,
                config.vocab_size_per_layer_input,
                columns,
                scale,
            ),
            matrix(MODEL_PROJECTION, Role.PER_LAYER_LINEAR, columns, hidden),
            vector("per_layer_projection_norm", ple),
        ]
    for plan in layer_plans(config):
        table += _layer(plan, config)
    table.append(vector("norm", hidden))
    if not config.ties_head:
        table.append(matrix(HEAD, Role.LM_HEAD, *sizes))
    return tuple(_with_steps(table, config) if config.rounds_activations else table)


def _with_steps(table: Sequence[Parameter], config: TextConfig) -> Iterator[Parameter]:
    """The table with the steps of each matrix behind it, but of the one that is never quantised.

    A tied head has steps of its own.
    """
    for parameter in table:
        yield parameter
        if parameter.role is Role.TOKEN_EMBEDDING and config.ties_head:
            head = steps_of(matrix(HEAD, Role.LM_HEAD, *parameter.shape))
            yield replace(head, name=steps_name(parameter.name))
        if parameter.role in _STEPPED and parameter.name != MODEL_PROJECTION:
            yield steps_of(parameter)
