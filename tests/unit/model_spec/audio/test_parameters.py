"""The parameter table of the sound input: its sums, its names, its place in the storage plan."""

from __future__ import annotations

from math import prod

import pytest

from gemma4_compile.model_spec.audio.parameters import parameter_table
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES

# Elements of transformers 5.24.0's audio tower and projection, buffers of the bounds included.
ELEMENTS = {
    "gemma-4-E2B-it": 304_825_088 + 2_359_296,
    "gemma-4-E4B-it": 304_825_088 + 3_932_160,
    "gemma-4-12B-it": 2_457_600,
}


def table(name: str) -> tuple[Parameter, ...]:
    config = Gemma4Config.from_preset(name, {Modality.TEXT, Modality.AUDIO})
    return parameter_table(config)


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_table_has_as_many_elements_as_the_reference_model(name: str) -> None:
    found = table(name)
    assert sum(prod(parameter.shape) for parameter in found) == ELEMENTS[name]
    sources = [source for parameter in found for source in parameter.sources]
    assert sum(prod(source.shape) for source in sources) == ELEMENTS[name]
    assert len({source.name for source in sources}) == len(sources)
    assert len({parameter.name for parameter in found}) == len(found)
    prefixes = ("model.audio_tower.", "model.embed_audio.")
    assert all(source.name.startswith(prefixes) for source in sources)


def test_a_text_package_has_none() -> None:
    assert parameter_table(Gemma4Config.from_preset("gemma-4-E2B-it")) == ()


def test_bounds_of_a_matmul_are_one_parameter() -> None:
    found = {parameter.name: parameter for parameter in table("gemma-4-E2B-it")}
    bounds = found["audio_tower.layers.11.lconv1d.linear_end.bounds"]
    assert (bounds.shape, bounds.arrangement) == ((4,), Arrangement.SCALARS)
    ends = [source.name.rpartition(".")[2] for source in bounds.sources]
    assert ends == ["input_min", "input_max", "output_min", "output_max"]
    assert sum(parameter.name.endswith(".bounds") for parameter in found.values()) == 12 * 10


def test_recipes_store_matrices_in_8_bits_and_the_rest_in_float32() -> None:
    plan = storage_plan(table("gemma-4-E2B-it"), RECIPES["q4f16"], None)
    for stored in plan:
        expected = "q8f16_1" if stored.parameter.role is Role.AUDIO_LINEAR else "q0f32"
        assert stored.scheme.name == expected, stored.parameter.name


def test_narrow_and_odd_matrices_of_media_are_dense() -> None:
    def scheme(cols: int, quant: str) -> object:
        matrix = Parameter("m", Role.AUDIO_LINEAR, (64, cols), ())
        return RECIPES[quant].scheme(matrix)

    assert scheme(224, "q4f16") == DenseScheme("float16")
    assert scheme(4304, "q4f32") == DenseScheme("float32")
    assert scheme(256, "q4f32") == RECIPES["q4f32"].schemes[Role.AUDIO_LINEAR]
    assert scheme(4304, "f32") == DenseScheme("float32")
