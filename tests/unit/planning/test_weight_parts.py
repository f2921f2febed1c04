"""Which part of a device's memory a parameter is counted in."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import ALL_MODALITIES
from gemma4_compile.planning.weight_parts import part_of


@pytest.mark.parametrize("preset", ["gemma-4-E2B-it", "gemma-4-12B-it"])
def test_all_that_a_tower_has_is_counted_with_it(preset: str) -> None:
    config = Gemma4Config.from_preset(preset, ALL_MODALITIES)
    for parameter in model_parameters(config, ALL_COMPONENTS):
        names = [part for part in ("vision", "audio") if part in parameter.name.partition(".")[0]]
        assert part_of(parameter) in names or not names, parameter.name
