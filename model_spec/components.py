"""The components that a model may have."""

from __future__ import annotations

from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.embedding.component import EMBEDDING
from gemma4_compile.model_spec.gemma3n.component import GEMMA3N
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.vision.component import VISION

COMPONENTS: tuple[Component, ...] = (TEXT, GEMMA3N, EMBEDDING, VISION, AUDIO)
"""Those of one checkpoint; of the first three, decoders and an encoder, it has one."""
ALL_COMPONENTS: tuple[Component, ...] = (*COMPONENTS, DRAFTER)
"""Those of a package: with what comes from a checkpoint of its own, at the end."""
