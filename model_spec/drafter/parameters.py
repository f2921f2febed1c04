"""The parameter table of a drafter.

Its names begin with `drafter.`, and those of its sources, too: its checkpoint is another one than
the target's, with tensors of the same names.
"""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.layer_plan import drafter_plans
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.model_spec.text.parameters import (
    HEAD,
    attention_parameters,
    layer_scalar,
    matrix,
    mlp_parameters,
    vector,
)

STEM = "drafter."
ORDERING = f"{STEM}masked_embedding.token_ordering"
"""Name of the table of token ids by cluster, and of its tensor."""


def _layer(plan: LayerPlan, drafter: DrafterConfig) -> list[Parameter]:
    prefix, hidden = f"layers.{plan.index}", drafter.hidden_size
    return [
        vector(f"{prefix}.input_layernorm", hidden),
        *attention_parameters(f"{prefix}.self_attn", plan, hidden),
        vector(f"{prefix}.post_attention_layernorm", hidden),
        vector(f"{prefix}.pre_feedforward_layernorm", hidden),
        *mlp_parameters(f"{prefix}.mlp", hidden, plan.intermediate_size),
        vector(f"{prefix}.post_feedforward_layernorm", hidden),
        layer_scalar(prefix),
    ]


def _renamed(parameter: Parameter, prefix: str) -> Parameter:
    """The parameter as the package names it; `prefix` is that of its tensors in a checkpoint."""
    sources = tuple(
        replace(
            source,
            name=f"{STEM}{prefix}{source.name}",
            twin=None if source.twin is None else f"{STEM}{source.twin}",
        )
        for source in parameter.sources
    )
    return replace(parameter, name=f"{STEM}{parameter.name}", sources=sources)


def _head(drafter: DrafterConfig) -> Parameter:
    """The head, which alone reads a tied embedding: a drafter is given the target's rows."""
    sizes, name = (drafter.vocab_size, drafter.hidden_size), head_name(drafter)
    if not drafter.ties_head:
        return _renamed(matrix(name, Role.DRAFTER_HEAD, *sizes), "")
    twin = f"{HEAD}.weight"
    return _renamed(matrix(name, Role.DRAFTER_HEAD, *sizes, twin=twin), "model.")


def head_name(drafter: DrafterConfig) -> str:
    """The head's parameter before its STEM, and its tensor before `.weight`."""
    return "embed_tokens" if drafter.ties_head else HEAD


def parameter_table(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Every parameter of the drafter, none where a package has none."""
    drafter = config.drafter
    if drafter is None:
        return ()
    hidden, backbone = drafter.hidden_size, drafter.backbone_hidden_size
    layers = [
        parameter for plan in drafter_plans(drafter, config) for parameter in _layer(plan, drafter)
    ]
    table = [
        _renamed(matrix("pre_projection", Role.LINEAR, hidden, 2 * backbone), ""),
        *(_renamed(parameter, "model.") for parameter in layers),
        _renamed(vector("norm", hidden), "model."),
        _renamed(matrix("post_projection", Role.LINEAR, backbone, hidden), ""),
        _head(drafter),
    ]
    if drafter.num_centroids:
        # Few rows, whose order decides what can be drafted: not quantised.
        name, shape = "masked_embedding.centroids", (drafter.num_centroids, hidden)
        centroids = Parameter(name, Role.ROUTER, shape, (Source(f"{name}.weight", shape),))
        ids = (drafter.vocab_size,)
        # Ids are exact in float32, as which vectors are stored.
        ordering = Source(ORDERING, ids, is_ids=True)
        table += [
            _renamed(centroids, ""),
            Parameter(ORDERING, Role.VECTOR, ids, (ordering,)),
        ]
    return tuple(table)
