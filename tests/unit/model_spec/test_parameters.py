"""The parameter table: its sums, its fused parameters and its order."""

from __future__ import annotations

from math import prod

import pytest

from gemma4_compile.model_spec.config import Gemma4Config
from gemma4_compile.model_spec.parameters import (
    Arrangement,
    Parameter,
    Role,
    folded_scale,
    is_power_of_two,
    parameter_table,
)

# Elements of the text model as transformers 5.23.0 builds it on the meta device, head tied.
ELEMENTS = {
    "gemma-4-E2B-it": 4_628_569_379,
    "gemma-4-E4B-it": 7_463_013_418,
    "gemma-4-31B-it": 30_697_345_340,
}


def table(name: str) -> dict[str, Parameter]:
    parameters = parameter_table(Gemma4Config.from_preset(name))
    named = {parameter.name: parameter for parameter in parameters}
    assert len(named) == len(parameters), "names are unique"
    return named


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_table_has_as_many_elements_as_the_reference_model(name: str) -> None:
    assert sum(prod(parameter.shape) for parameter in table(name).values()) == ELEMENTS[name]


@pytest.mark.parametrize("name", ELEMENTS)
def test_sources_fill_their_parameter_and_are_used_once(name: str) -> None:
    parameters = table(name).values()

    for parameter in parameters:
        assert sum(prod(source.shape) for source in parameter.sources) == prod(parameter.shape)
    sources = [source.name for parameter in parameters for source in parameter.sources]
    assert len(set(sources)) == len(sources)


def test_a_shared_layer_has_queries_only() -> None:
    found = table("gemma-4-E2B-it")

    own, shared = (found[f"layers.{index}.self_attn.qkv_proj"] for index in (14, 15))
    prefix = "layers.14.self_attn"
    assert [source.name for source in own.sources] == [
        f"{prefix}.{name}_proj.weight" for name in ("q", "k", "v")
    ]
    assert own.shape == ((8 + 1 + 1) * 512, 1536)
    assert [source.name for source in shared.sources] == ["layers.15.self_attn.q_proj.weight"]
    assert "layers.14.self_attn.k_norm" in found
    assert "layers.15.self_attn.k_norm" not in found


def test_k_equals_v_layers_have_no_v_projection() -> None:
    found = table("gemma-4-31B-it")

    assert found["layers.5.self_attn.qkv_proj"].shape == ((32 + 4) * 512, 5376)
    assert found["layers.4.self_attn.qkv_proj"].shape == ((32 + 16 + 16) * 256, 5376)


def test_gate_and_up_are_interleaved_by_rows() -> None:
    parameter = table("gemma-4-E2B-it")["layers.20.mlp.gate_up_proj"]

    assert parameter.arrangement is Arrangement.INTERLEAVE_ROWS
    assert parameter.shape == (2 * 12288, 1536)
    assert [source.name.split(".")[-2] for source in parameter.sources] == ["gate_proj", "up_proj"]


def test_only_the_per_layer_table_carries_a_scale() -> None:
    for parameter in table("gemma-4-E2B-it").values():
        assert parameter.scale == (16.0 if parameter.role is Role.PER_LAYER_EMBEDDING else 1.0)


def test_a_model_without_per_layer_embeddings_has_none_of_their_parameters() -> None:
    assert not [name for name in table("gemma-4-31B-it") if "per_layer" in name]


@pytest.mark.parametrize(
    ("value", "expected"), [(16.0, True), (0.5, True), (1.0, True), (39.25, False), (0.0, False)]
)
def test_only_powers_of_two_are_folded(value: float, expected: bool) -> None:
    assert is_power_of_two(value) == expected
    assert folded_scale(value) == (value if expected else 1.0)
