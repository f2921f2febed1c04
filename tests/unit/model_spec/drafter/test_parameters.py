"""The parameters of a drafter: names, shapes, sources, and the count of the released ones."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS, COMPONENTS
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.parameters import ORDERING, parameter_table
from tests import models
from tests.drafters import drafter_config, random_weights
from tests.unit.model_spec.config.test_drafter import E2B


def drafted(kind: str) -> Gemma4Config:
    target = Gemma4Config.from_dict(models.config_file(models.KINDS[kind], "hub", "float32"))
    return replace(target, drafter=read_drafter(drafter_config(kind)))


def test_a_model_without_a_drafter_has_none() -> None:
    config = replace(drafted("e2b"), drafter=None)
    assert parameter_table(config) == ()
    assert model_parameters(config, ALL_COMPONENTS) == model_parameters(config, COMPONENTS)


def test_sources_are_the_checkpoint_s_tensors() -> None:
    for kind in models.KINDS:
        table = parameter_table(drafted(kind))
        sources = {
            source.name.removeprefix("drafter."): source.shape
            for parameter in table
            for source in parameter.sources
        }
        weights = random_weights(drafter_config(kind))
        assert sources == {name: value.shape for name, value in weights.items()}


def test_names_clash_with_no_other_s() -> None:
    names = [parameter.name for parameter in model_parameters(drafted("e2b"), ALL_COMPONENTS)]
    assert len(set(names)) == len(names)
    assert names[-1] == ORDERING


def test_the_released_one_has_its_number_of_parameters() -> None:
    target = Gemma4Config.from_preset("gemma-4-E2B-it")
    table = parameter_table(replace(target, drafter=read_drafter(E2B)))
    count = sum(prod(parameter.shape) for parameter in table if parameter.name != ORDERING)
    assert count == 77_731_332
    assert len({source.name for p in table for source in p.sources}) == 50
