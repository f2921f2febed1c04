"""The parameter table: its sums, its fused parameters and its order."""

from __future__ import annotations

from math import prod

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role
from gemma4_compile.model_spec.text.parameters import parameter_table

# Elements of the text model as transformers 5.24.0 builds it on the meta device, head tied.
ELEMENTS = {
    "gemma-4-E2B-it": 4_628_569_379,
    "gemma-4-E4B-it": 7_463_013_418,
    "gemma-4-12B-it": 11_907_350_320,
    "gemma-4-26B-A4B-it": 25_233_141_790,
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


def test_experts_are_stacks_of_matrices_with_gate_and_up_interleaved() -> None:
    found = table("gemma-4-26B-A4B-it")

    gate_up = found["layers.3.experts.gate_up_proj"]
    assert gate_up.sources[0].name == "layers.3.experts.gate_up_proj"  # no `.weight` in the file
    assert gate_up.sources[0].shape == (128, 1408, 2816)
    assert gate_up.shape == (128 * 1408, 2816)
    assert gate_up.arrangement is Arrangement.INTERLEAVE_HALVES
    down = found["layers.3.experts.down_proj"]
    assert (down.shape, down.arrangement) == ((128 * 2816, 704), Arrangement.COPY)
    assert [gate_up.row_group, down.row_group] == [1408, 2816]
    assert {gate_up.role, down.role} == {Role.EXPERTS}


def test_a_layer_with_experts_keeps_its_dense_mlp_and_has_a_router() -> None:
    found = table("gemma-4-26B-A4B-it")

    prefix = "layers.3."
    shapes = {
        name.removeprefix(prefix): parameter.shape
        for name, parameter in found.items()
        if name.startswith(prefix) and "self_attn" not in name
    }
    assert shapes == {
        "input_layernorm": (2816,),
        "pre_feedforward_vectors": (4, 2816),
        "post_feedforward_layernorms": (3, 2816),
        "mlp.gate_up_proj": (2 * 2112, 2816),
        "mlp.down_proj": (2816, 2112),
        "router.proj": (128, 2816),
        "router.per_expert_scale": (128,),
        "experts.gate_up_proj": (128 * 1408, 2816),
        "experts.down_proj": (128 * 2816, 704),
        "layer_scalar": (1,),
    }
    names = {source.name for name in found for source in found[name].sources}
    assert f"{prefix}router.proj.weight" in names
    assert {f"{prefix}router.scale", f"{prefix}router.per_expert_scale"} <= names
    assert found[f"{prefix}router.proj"].role is Role.ROUTER


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        (
            "pre_feedforward_vectors",
            (
                "post_attention_layernorm.weight",
                "pre_feedforward_layernorm.weight",
                "router.scale",
                "pre_feedforward_layernorm_2.weight",
            ),
        ),
        (
            "post_feedforward_layernorms",
            tuple(f"post_feedforward_layernorm{end}.weight" for end in ("_1", "_2", "")),
        ),
    ],
)
def test_vectors_that_a_kernel_reads_together_are_one_tensor(
    name: str, sources: tuple[str, ...]
) -> None:
    vectors = table("gemma-4-26B-A4B-it")[f"layers.3.{name}"]
    assert (vectors.role, vectors.arrangement) == (Role.VECTOR, Arrangement.STACK)
    assert [source.name.removeprefix("layers.3.") for source in vectors.sources] == list(sources)
    assert not any("vectors" in name or "layernorms" in name for name in table("gemma-4-31B-it"))


def test_only_experts_have_rows_that_stay_together() -> None:
    for parameter in table("gemma-4-26B-A4B-it").values():
        assert (parameter.row_group > 1) == (parameter.role is Role.EXPERTS)
        assert parameter.shape[0] % parameter.row_group == 0


def test_a_model_without_experts_has_none_of_their_parameters() -> None:
    assert not [name for name in table("gemma-4-31B-it") if "expert" in name or "router" in name]
    assert not [name for name in table("gemma-4-31B-it") if name.endswith(("norm_1", "norm_2"))]


def test_only_the_per_layer_table_carries_a_scale() -> None:
    for parameter in table("gemma-4-E2B-it").values():
        assert parameter.scale == (16.0 if parameter.role is Role.PER_LAYER_EMBEDDING else 1.0)


def test_a_model_without_per_layer_embeddings_has_none_of_their_parameters() -> None:
    assert not [name for name in table("gemma-4-31B-it") if "per_layer" in name]
