"""What all components of a model share without a clash."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.text.component import TEXT


def test_the_decoder_is_the_first() -> None:
    assert COMPONENTS[0] is TEXT


def test_names_and_prefixes_belong_to_one_component() -> None:
    names = [component.name for component in COMPONENTS]
    prefixes = [prefix for component in COMPONENTS for prefix in component.prefixes]
    assert len(set(names)) == len(names)
    assert len(set(prefixes)) == len(prefixes)


@pytest.mark.parametrize("preset", preset_names())
def test_parameters_have_names_of_their_own(preset: str) -> None:
    parameters = model_parameters(Gemma4Config.from_preset(preset), COMPONENTS)
    names = [parameter.name for parameter in parameters]
    assert len(set(names)) == len(names)
