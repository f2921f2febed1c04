"""Gemma 3n's text decoder as a component: in the text decoder's place, under its names."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.gemma3n.export import export_gemma3n
from gemma4_compile.model_spec.gemma3n.memory import activation_memory
from gemma4_compile.model_spec.gemma3n.parameters import parameter_table
from gemma4_compile.model_spec.text.component import TEXT

GEMMA3N = replace(
    TEXT,
    name="gemma3n",
    parameters=parameter_table,
    export=export_gemma3n,
    activations=activation_memory,
)
