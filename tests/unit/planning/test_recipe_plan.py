"""The weights of a table in a recipe, against sums of its shapes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.planning.recipe_plan import plan_recipe
from gemma4_compile.quantization.schemes import RECIPES

CONFIG = Gemma4Config.from_preset("gemma-4-E2B-it")
TABLE = parameter_table(CONFIG)


def test_a_limit_splits_tensors_and_takes_no_bytes() -> None:
    whole = plan_recipe(CONFIG, TABLE, RECIPES["f32"], None)
    split = plan_recipe(CONFIG, TABLE, RECIPES["f32"], 1 << 27)
    assert whole.weights_bytes == split.weights_bytes == 4 * sum(prod(p.shape) for p in TABLE)
    assert whole.largest_binding_bytes == max(4 * prod(p.shape) for p in TABLE)
    assert (whole.split_parameters, whole.most_parts) == (0, 1)
    assert split.largest_binding_bytes <= 1 << 27 < split.largest_tensor_bytes
    assert split.split_parameters == sum(4 * prod(p.shape) > 1 << 27 for p in TABLE)


def test_a_recipe_that_cannot_store_a_matrix_says_why() -> None:
    narrow = replace(CONFIG, intermediate_size=6160)
    found = plan_recipe(narrow, parameter_table(narrow), RECIPES["q4f16"], None)
    assert "groups of 32" in str(found.problem)
    assert found.weights_bytes == 0
