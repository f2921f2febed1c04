"""The parameter table of a picture's part against the tensors of the released checkpoints."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.vision.component import VISION

PICTURES = frozenset({Modality.TEXT, Modality.IMAGE})
PRESETS = ("E2B", "E4B", "12B", "26B-A4B", "31B")


@pytest.mark.parametrize("size", PRESETS)
def test_parameters_of_a_released_size(size: str) -> None:
    preset = f"gemma-4-{size}-it"
    assert VISION.parameters(Gemma4Config.from_preset(preset)) == ()
    config = Gemma4Config.from_preset(preset, PICTURES)
    names = [p.name for p in model_parameters(config, COMPONENTS)]
    assert len(set(names)) == len(names)
    sources = {s.name: s.shape for p in VISION.parameters(config) for s in p.sources}
    hidden = config.hidden_size
    if size == "12B":
        assert sources["model.vision_embedder.patch_dense.weight"] == (3840, 6912)
        assert sources["model.vision_embedder.pos_embedding"] == (1120, 2, 3840)
        assert sources["model.embed_vision.embedding_projection.weight"] == (3840, 3840)
        assert len(sources) == 10
        return
    width, layers = (768, 16) if size in ("E2B", "E4B") else (1152, 27)
    table = "model.vision_tower.patch_embedder.position_embedding_table"
    assert sources[table] == (2, 10_240, width)
    assert sources["model.embed_vision.embedding_projection.weight"] == (hidden, width)
    scalars = [name for name, shape in sources.items() if shape == ()]
    assert len(scalars) == (448 if width == 768 else 0)
    assert ("model.vision_tower.std_bias" in sources) == (width == 1152)
    assert len(sources) - len(scalars) == 3 + 13 * layers + (2 if width == 1152 else 0)
