"""Kinds of parameters as a plan counts them, and what a decoded token reads of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.parameters import Parameter, Role

KINDS: Mapping[str, str] = {
    "attention": "attention",
    "dense_mlp": "dense MLP",
    "streams": "residual streams",
    "router": "router",
    "experts": "experts",
    "per_layer_projections": "per-layer projections",
    "token_embedding": "token embedding",
    "lm_head": "head",
    "per_layer_embedding": "per-layer embedding table",
    "vision_linear": "image input",
    "audio_linear": "sound input",
    "vectors": "norms and scalars",
    "drafter": "drafter",
}
"""Names of the kinds of parameters, for people."""
_OF_STREAMS = re.compile(r"^altup_|\.laurel\.")  # of Gemma 3n


def kind_name(kind: str, config: Gemma4Config) -> str:
    """Name of a kind in a model, for people."""
    tied = kind == Role.TOKEN_EMBEDDING.value and config.ties_head
    return f"{KINDS[kind]} (and head)" if tied else KINDS[kind]


def kind_of(parameter: Parameter) -> str:
    """Kind of a parameter, a key of KINDS."""
    if parameter.name.startswith(DRAFTER.stem):
        return "drafter"
    if parameter.role is Role.LINEAR and _OF_STREAMS.search(parameter.name):
        return "streams"
    if parameter.role is Role.LINEAR:
        return "attention" if ".self_attn." in parameter.name else "dense_mlp"
    return {Role.VECTOR: "vectors", Role.PER_LAYER_LINEAR: "per_layer_projections"}.get(
        parameter.role, parameter.role.value
    )


def read_per_token(config: Gemma4Config, sizes: Iterable[tuple[Parameter, int]]) -> int:
    """Sum of sizes that a decoded token reads: no vectors, no table rows, the chosen experts."""
    unread = {Role.VECTOR, Role.PER_LAYER_EMBEDDING, Role.VISION_LINEAR, Role.AUDIO_LINEAR}
    if not config.ties_head:
        unread.add(Role.TOKEN_EMBEDDING)
    total = 0
    for parameter, size in sizes:
        if parameter.role is Role.EXPERTS:
            total += size * config.top_k_experts // config.num_experts
        elif parameter.role not in unread:
            total += size
    return total
