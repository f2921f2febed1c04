"""Names of the configs that ship, by generation: what one has, the other's tests do not ask for."""

from __future__ import annotations

from gemma4_compile.model_spec.config.gemma4 import preset_names

GEMMA4 = tuple(name for name in preset_names() if name.startswith("gemma-4-"))
GEMMA3N = tuple(name for name in preset_names() if name not in GEMMA4)
