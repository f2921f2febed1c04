"""The text decoder as a component."""

from __future__ import annotations

import re

from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.kv_sharing import first_shared_layer
from gemma4_compile.model_spec.parameters import INPUT_STEP, OUTPUT_STEP, Parameter
from gemma4_compile.model_spec.text.export import export_text
from gemma4_compile.model_spec.text.memory import activation_memory
from gemma4_compile.model_spec.text.parameters import HEAD, parameter_table

_SHARED_KV = re.compile(
    r"layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm)\."
    rf"(?:weight|weight_scale|{INPUT_STEP}|{OUTPUT_STEP})"
)


def is_unused(source: str, config: Gemma4Config) -> bool:
    """Keys and values of layers that read another layer's: present in some checkpoints."""
    found = _SHARED_KV.fullmatch(source)
    layers = config.num_hidden_layers
    first = first_shared_layer(layers, config.num_kv_shared_layers)
    return found is not None and first <= int(found[1]) < layers


def parameters(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Gemma 4's decoder's, none for a config of another text model."""
    is_another = config.gemma3n is not None or config.embedding is not None
    return () if is_another else parameter_table(config)


TEXT = Component(
    name="text",
    prefixes=("model.language_model.", "model.", ""),
    parameters=parameters,
    export=export_text,
    activations=activation_memory,
    is_unused=is_unused,
    is_stripped=True,
    at_root=frozenset(f"{HEAD}.{end}" for end in ("weight", INPUT_STEP, OUTPUT_STEP)),
)
