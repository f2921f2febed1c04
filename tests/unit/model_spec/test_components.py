"""What all components of a model share without a clash."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.config.variants import TEXT_TYPES
from gemma4_compile.model_spec.embedding.component import EMBEDDING
from gemma4_compile.model_spec.gemma3n.component import GEMMA3N
from gemma4_compile.model_spec.text.component import TEXT


def test_the_decoder_is_the_first() -> None:
    assert COMPONENTS[0] is TEXT


def test_names_belong_to_one_component() -> None:
    names = [component.name for component in COMPONENTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model_type", TEXT_TYPES)
def test_prefixes_belong_to_one_component_of_a_model(model_type: str) -> None:
    """Decoders and an encoder have the same, and no model has two."""
    text = {"model_type": TEXT_TYPES[model_type]}
    config = Gemma4Config.from_dict({"model_type": model_type, "text_config": text})
    (own,) = (one for one in (TEXT, GEMMA3N, EMBEDDING) if one.parameters(config))
    absent = {TEXT.name, GEMMA3N.name, EMBEDDING.name} - {own.name}
    others = (component for component in COMPONENTS if component.name not in absent)
    prefixes = [prefix for component in others for prefix in component.prefixes]
    assert len(set(prefixes)) == len(prefixes)


@pytest.mark.parametrize("preset", preset_names())
def test_parameters_have_names_of_their_own(preset: str) -> None:
    parameters = model_parameters(Gemma4Config.from_preset(preset), COMPONENTS)
    names = [parameter.name for parameter in parameters]
    assert len(set(names)) == len(names)
