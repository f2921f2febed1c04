"""The sound input as a component: the tower of E2B and E4B, or the projection of 12B."""

from __future__ import annotations

from gemma4_compile.model_spec.audio.export import export_audio
from gemma4_compile.model_spec.audio.memory import activation_memory
from gemma4_compile.model_spec.audio.parameters import parameter_table
from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config


def is_unused(source: str, config: Gemma4Config) -> bool:
    """All of it, where a package takes no sounds."""
    del source
    return config.audio is None


AUDIO = Component(
    name="audio",
    prefixes=("model.audio_tower.", "model.embed_audio."),
    parameters=parameter_table,
    export=export_audio,
    activations=activation_memory,
    is_unused=is_unused,
)
