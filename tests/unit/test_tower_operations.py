"""Operations of towers, as the benchmarks count them, next to those of the model's equations."""

from __future__ import annotations

import pytest

from benchmarks.random_weights import Weight
from benchmarks.tower_operations import picture_operations, sound_operations
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES

PATCHES, ROWS = 2520, 280
SOUND = frozenset(Modality)


def weights(model: str, recipe: str) -> list[Weight]:
    config = Gemma4Config.from_preset(model, SOUND if "E2B" in model else SOUND - {Modality.AUDIO})
    plan = storage_plan(model_parameters(config, COMPONENTS), RECIPES[recipe], None)
    stored = (tensor for parameter in plan for tensor in parameter.tensors)
    return [Weight(tensor.name, tensor.shape, tensor.dtype) for tensor in stored]


@pytest.mark.parametrize("recipe", ["q4f16", "f32"])
@pytest.mark.parametrize(
    ("model", "layers", "hidden", "heads", "mlp", "decoder"),
    [
        ("gemma-4-E2B-it", 16, 768, 12 * 64, 3072, 1536),
        ("gemma-4-31B-it", 27, 1152, 16 * 72, 4304, 5376),
    ],
)
def test_operations_of_a_picture(
    model: str, recipe: str, layers: int, hidden: int, heads: int, mlp: int, decoder: int
) -> None:
    layer = 4 * hidden * heads + 3 * hidden * mlp
    products = PATCHES * (layers * layer + 16 * 16 * 3 * hidden) + ROWS * hidden * decoder
    scores = layers * 2 * PATCHES * PATCHES * heads
    assert picture_operations(weights(model, recipe), ROWS) == 2 * (products + scores)


def test_operations_of_a_sound_grow_with_its_rows() -> None:
    tensors = weights("gemma-4-E2B-it", "q4f16")
    second = sound_operations(tensors, 16_000)
    assert 29.9 < sound_operations(tensors, 480_000) / second < 30.1
    # Twelve conformer layers of 1,024: two MLPs of 4 times as many, attention, a gated convolution.
    layer = 2 * 2 * 4 * 1024**2 + 4 * 1024**2 + 3 * 1024**2
    assert second > 2 * 25 * 12 * layer
