"""Weights as a recipe stores them, without a package, are those of a conversion."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.parameters import Arrangement, Parameter
from gemma4_compile.quantization.convert import RowReader, conversion_steps
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.verification import recipe_weights
from gemma4_compile.verification.recipe_weights import EXACT, RecipeWeights
from gemma4_compile.verification.stored_weights import parameter_rows
from tests import models
from tests.marks import slow_unless
from tests.packages import config_of


def reader(weights: dict[str, np.ndarray]) -> RowReader:
    def read(name: str, begin: int, end: int) -> np.ndarray:
        values = weights[name]
        rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(-1)
        return rows[begin:end]

    return read


def parameters(text: dict[str, object]) -> tuple[Parameter, ...]:
    made = models.Checkpoint(None, text, {}, "float32")  # type: ignore[arg-type]  # its config
    return tuple(model_parameters(config_of(made), COMPONENTS))


@pytest.mark.parametrize("kind", slow_unless("moe".__eq__, list(models.KINDS)))
def test_they_are_what_a_conversion_stores(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_weights, "BLOCK_BYTES", 4 * 32 * 5)  # several blocks a matrix
    text = models.ALL[kind]
    weights = models.random_weights(text)
    table = parameters(text)
    recipe = with_overrides("q4f16", [("*.o_proj", "q8f16_1"), ("*.down_proj", "q0f16")])
    read = reader(weights)
    found = RecipeWeights(read, table, recipe)
    for stored in storage_plan(table, recipe, None):
        blocks = [step.run(read) for step in conversion_steps(stored)]
        arrays = [
            np.concatenate([block[i].data for block in blocks]) for i in range(len(stored.tensors))
        ]
        parameter = stored.parameter
        values = stored.scheme.load(arrays) / np.float32(parameter.scale)
        for index, source in enumerate(parameter.sources):
            count = prod(source.shape[:-1]) if len(source.shape) > 1 else prod(source.shape)
            if parameter.arrangement is Arrangement.STACK:
                expected = values[index]
            else:
                expected = values[parameter_rows(parameter, index, np.arange(count))]
            np.testing.assert_array_equal(found.read(source.name, 0, count), expected)
            last = found.read(source.name, count - 1, count)
            np.testing.assert_array_equal(last, expected[-1:])


def test_versions_tell_tensors_with_the_same_values() -> None:
    table = parameters(models.E2B_LIKE)
    read = reader({})
    four, eight, exact = (
        RecipeWeights(read, table, with_overrides(name, ())) for name in ("q4f16s", "q8f16", "f32")
    )
    assert four.version("embed_tokens.weight") != eight.version("embed_tokens.weight")
    assert exact.version("embed_tokens.weight") == EXACT
    assert four.version("norm.weight") == eight.version("norm.weight") == EXACT


def test_a_weight_that_is_not_finite_is_named() -> None:
    weights = models.random_weights(models.E2B_LIKE)
    name = "layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][3, 1] = np.nan
    table = parameters(models.E2B_LIKE)
    found = RecipeWeights(reader(weights), table, with_overrides("q4f16", ()))
    with pytest.raises(QuantizationError, match=rf"`{name}`: row 3 .* not finite"):
        found.read(name, 0, len(weights[name]))
