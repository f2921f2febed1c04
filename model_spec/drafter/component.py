"""The drafter as a component: its tensors are in a checkpoint of their own."""

from __future__ import annotations

from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.drafter.export import export_drafter
from gemma4_compile.model_spec.drafter.memory import activation_memory
from gemma4_compile.model_spec.drafter.parameters import STEM, parameter_table

DRAFTER = Component(
    name="drafter",
    prefixes=("model.", "pre_projection.", "post_projection.", "masked_embedding."),
    parameters=parameter_table,
    export=export_drafter,
    activations=activation_memory,
    stem=STEM,
)
