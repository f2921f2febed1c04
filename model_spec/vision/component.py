"""A picture's part as a component: a vision tower, or 12B's patch projection."""

from __future__ import annotations

from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.vision.export import export_vision
from gemma4_compile.model_spec.vision.memory import picture_memory
from gemma4_compile.model_spec.vision.parameters import (
    EMBED,
    EMBEDDER,
    PREFIX,
    TOWER,
    parameter_table,
)


def is_unused(source: str, config: Gemma4Config) -> bool:
    """All of it, in packages that take no pictures."""
    return config.vision is None


VISION = Component(
    name="vision",
    prefixes=tuple(f"{PREFIX}{part}." for part in (TOWER, EMBEDDER, EMBED)),
    parameters=parameter_table,
    export=export_vision,
    activations=picture_memory,
    is_unused=is_unused,
)
