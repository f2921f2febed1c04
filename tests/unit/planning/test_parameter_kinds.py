"""Kinds of parameters in a plan, and what a decoded token reads, with a head tied and not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.planning.parameter_kinds import KINDS, kind_name, kind_of, read_per_token
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.targets import target_spec


def untied(preset: str) -> Gemma4Config:
    return replace(Gemma4Config.from_preset(preset), ties_head=False)


def plan_of(config: Gemma4Config, quant: str = "q4f16") -> BuildPlan:
    return make_plan(config, quant, target_spec("webgpu", "default"), 4096, 1024)


@pytest.mark.parametrize("preset", preset_names())
def test_every_parameter_has_a_kind(preset: str) -> None:
    table = model_parameters(untied(preset), COMPONENTS)
    kinds = {parameter.name: kind_of(parameter) for parameter in table}
    assert set(kinds.values()) <= set(KINDS)
    assert kinds["embed_tokens"] == "token_embedding"
    assert kinds["lm_head"] == "lm_head"


def test_the_embedding_is_called_the_head_only_where_it_is() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")
    assert kind_name("token_embedding", config) == "token embedding (and head)"
    assert kind_name("token_embedding", replace(config, ties_head=False)) == "token embedding"


@pytest.mark.parametrize("preset", preset_names())
def test_a_token_reads_one_of_the_two_matrices(preset: str) -> None:
    """Of an embedding that is no head it reads a row: as many parameters as of a tied one."""
    for config in (Gemma4Config.from_preset(preset), untied(preset)):
        table = model_parameters(config, COMPONENTS)
        sizes = {p.name: p.shape[0] * p.shape[-1] for p in table}
        count = read_per_token(config, ((p, p.name == "embed_tokens") for p in table))
        assert count == config.ties_head
        head = "embed_tokens" if config.ties_head else "lm_head"
        assert sizes[head] == config.vocab_size * config.hidden_size


@pytest.mark.parametrize("quant", ["q4f16", "q4f16s", "f16"])
def test_the_plan_counts_the_head(quant: str) -> None:
    tied = plan_of(Gemma4Config.from_preset("gemma-4-E2B-it"), quant)
    own = plan_of(untied("gemma-4-E2B-it"), quant)
    matrix = tied.config.vocab_size * tied.config.hidden_size
    bits = {"q4f16": 8.5, "q4f16s": 4.5, "f16": 16}[quant]  # with a float16 scale of 32 weights
    more = round(matrix * bits / 8)
    assert own.parameter_count - tied.parameter_count == matrix
    assert own.recipe.weights_bytes - tied.recipe.weights_bytes == more
    assert own.device_memory_bytes - tied.device_memory_bytes == more
    assert own.download_bytes - tied.download_bytes == more
    assert own.checkpoint_bytes - tied.checkpoint_bytes == 2 * matrix
    assert own.read_per_token == tied.read_per_token
    assert own.recipe.bytes_per_token == tied.recipe.bytes_per_token
    assert own.recipe.split_parameters > tied.recipe.split_parameters
    assert own.recipe.largest_binding_bytes <= 128 << 20
    assert dict(own.parameters)["lm_head"] == matrix
    assert "\n  head  " in plan_text(own, "model")
    assert json.loads(json.dumps(plan_json(own, {})))["parameters"]["lm_head"] == matrix
