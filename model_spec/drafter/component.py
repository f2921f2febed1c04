"""The drafter as a component: its tensors are in a checkpoint of their own."""

from __future__ import annotations

from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.export import export_drafter
from gemma4_compile.model_spec.drafter.memory import activation_memory
from gemma4_compile.model_spec.drafter.parameters import STEM, parameter_table


def is_unused(source: str, config: Gemma4Config) -> bool:
    """The embedding beside a head of its own: a drafter is given the target's rows."""
    embedding = source == f"{STEM}model.embed_tokens.weight"
    return embedding and config.drafter is not None and not config.drafter.ties_head


DRAFTER = Component(
    name="drafter",
    prefixes=("model.", "pre_projection.", "post_projection.", "masked_embedding.", "lm_head."),
    parameters=parameter_table,
    export=export_drafter,
    activations=activation_memory,
    is_unused=is_unused,
    stem=STEM,
)
