"""An encoder of texts as a component."""

from __future__ import annotations

from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.embedding.export import export_embedding
from gemma4_compile.model_spec.embedding.memory import encoder_memory
from gemma4_compile.model_spec.embedding.parameters import parameter_table
from gemma4_compile.model_spec.text.component import TEXT

EMBEDDING = Component(
    name="embedding",
    prefixes=TEXT.prefixes,
    parameters=parameter_table,
    export=export_embedding,
    activations=encoder_memory,
    is_stripped=True,
)
