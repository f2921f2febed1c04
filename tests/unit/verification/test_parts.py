"""Parts of decoders: each matrix is in one, and recipe files say of each what was chosen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.quantization.recipe import FIXED_ROLES, storage_plan
from gemma4_compile.quantization.recipe_file import (
    check_overrides,
    read_recipe_file,
    with_overrides,
)
from gemma4_compile.verification.parts import parts_of, recipe_schemes
from tests import models

KINDS = ("dense", "e2b", "moe", "e2b, untied")


def config_of(kind: str) -> Gemma4Config:
    return Gemma4Config.from_dict(models.config_file(models.ALL[kind], "hub", "float32"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_matrix_is_in_one_part(kind: str) -> None:
    config = config_of(kind)
    table = parameter_table(config)
    parts = parts_of(table, config.num_hidden_layers)
    names = [name for part in parts for name in part.names]
    assert sorted(names) == sorted(one.name for one in table if one.role not in FIXED_ROLES)
    assert len({part.name for part in parts}) == len(parts)
    for column, scheme in enumerate(("q4f16_1", "q8f16_1")):
        plan = storage_plan(table, with_overrides("f16", [("*", scheme)]), None)
        size = {one.parameter.name: sum(each.nbytes for each in one.tensors) for one in plan}
        for part in parts:
            assert part.bytes[column] == sum(size[name] for name in part.names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_file_says_what_was_chosen_on_every_recipe(kind: str, tmp_path: Path) -> None:
    config, random, file = config_of(kind), np.random.default_rng(0), tmp_path / "recipe.json"
    table = parameter_table(config)
    parts = parts_of(table, config.num_hidden_layers)
    for share in (0.0, 0.3, 0.5, 0.7, 1.0):
        eight = {part for part in parts if random.random() < share}
        file.write_text(json.dumps({"schemes": recipe_schemes(parts, eight)}))
        wanted = {
            name: "q8f16_1" if part in eight else "q4f16_1" for part in parts for name in part.names
        }
        for base in ("q4f16", "q4f16l", "q8f16"):
            recipe = with_overrides(base, read_recipe_file(file))
            check_overrides(recipe, model_parameters(config, COMPONENTS))
            found = {one.name: recipe.scheme(one).name for one in table}
            assert {name: found[name] for name in wanted} == wanted
            fixed = {one.name for one in table if one.role in FIXED_ROLES}
            plain = with_overrides(base, ())
            assert all(
                recipe.scheme(one) == plain.scheme(one) for one in table if one.name in fixed
            )


def test_parts_of_a_released_size_are_few_and_named_in_short() -> None:
    config = Gemma4Config.from_preset("gemma-4-26B-A4B-it")
    table = parameter_table(config)
    parts = parts_of(table, config.num_hidden_layers)
    assert len(parts) == 1 + 3 * 6, "the head, and attention, MLP and experts, two matrices each"
    assert parts[1].name == "layers 0-9: self_attn.qkv_proj"
    experts = [part for part in parts if "experts" in part.name]
    assert sum(part.weights for part in experts) == sum(
        one.shape[0] * one.shape[1] for one in table if one.role is Role.EXPERTS
    )
    assert len(recipe_schemes(parts, parts)) == 7
    down = [part for part in parts if part.name.endswith("mlp.down_proj")]
    for eight in (down[:1], down[:2]):  # the layers that most of them are unlike are named
        assert len(recipe_schemes(parts, eight)) == 7 + 10
