"""Recipes and the storage plan: which scheme, which parts, and that no binding is too large."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT, storage_plan
from gemma4_compile.quantization.schemes import RECIPES

MIB = 1 << 20


def matrix(rows: int, cols: int, role: Role = Role.LINEAR) -> Parameter:
    return Parameter("w", role, (rows, cols), (Source("w.weight", (rows, cols)),))


def experts(count: int, rows: int) -> Parameter:
    source = Source("e", (count, rows, 64))
    return Parameter("e", Role.EXPERTS, (count * rows, 64), (source,), row_group=rows)


def test_the_recipes() -> None:
    assert set(RECIPES) == {
        "q4f16",
        "q4f16s",
        "q4f16m",
        "q4f16l",
        "q4f32",
        "q4kf16",
        "q4kf16m",
        "q8f16",
        "f16",
        "f32",
    }
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert recipe.activation_dtype == ("float16" if "f16" in name else "float32")


@pytest.mark.parametrize("name", RECIPES)
def test_vectors_are_float32_in_every_recipe(name: str) -> None:
    vector = Parameter("norm", Role.VECTOR, (64,), (Source("norm.weight", (64,)),))

    (stored,) = storage_plan([vector], RECIPES[name], None)

    assert [tensor.dtype for tensor in stored.tensors] == ["float32"]


def test_four_bit_recipes_store_the_per_layer_projections_in_eight() -> None:
    (stored,) = storage_plan([matrix(64, 64, Role.PER_LAYER_LINEAR)], RECIPES["q4f16"], None)

    assert stored.scheme == GroupScheme(8, "float16")


def test_a_tensor_within_the_limit_stays_whole() -> None:
    (stored,) = storage_plan([matrix(512, 64)], RECIPES["f32"], 512 * 64 * 4)

    assert [(part.row_begin, part.row_end) for part in stored.row_splits] == [(0, 512)]
    assert [tensor.name for tensor in stored.tensors] == ["w.weight"]


@pytest.mark.parametrize("rows", [513, 1000, 4096])
def test_a_larger_tensor_is_split_into_aligned_parts_that_cover_it(rows: int) -> None:
    limit = 512 * 64 * 4
    (stored,) = storage_plan([matrix(rows, 64)], RECIPES["f32"], limit)

    begin = 0
    for index, part in enumerate(stored.row_splits):
        assert part.row_begin == begin
        assert part.row_begin % ROW_ALIGNMENT == 0
        (tensor,) = part.tensors
        assert tensor.name == f"w.weight.part{index}"
        assert tensor.shape == (part.rows, 64)
        assert tensor.nbytes <= limit
        begin = part.row_end
    assert begin == rows
    assert len(stored.row_splits) >= 2


@pytest.mark.parametrize("name", RECIPES)
def test_the_router_is_dense_in_every_recipe(name: str) -> None:
    (stored,) = storage_plan([matrix(128, 96, Role.ROUTER)], RECIPES[name], None)

    assert stored.scheme == DenseScheme(RECIPES[name].activation_dtype)


def test_experts_have_the_recipes_main_scheme() -> None:
    (stored,) = storage_plan([experts(8, 96)], RECIPES["q4f16"], None)

    assert stored.scheme == GroupScheme(4, "float16")


@pytest.mark.parametrize(("count", "rows"), [(8, 96), (7, 96), (128, 6), (5, 200)])
@pytest.mark.parametrize("fitting", [1, 2, 3, 7])
def test_experts_are_split_between_experts(count: int, rows: int, fitting: int) -> None:
    limit = fitting * rows * 64 * 4 + 64 * 4  # and some rows more
    (stored,) = storage_plan([experts(count, rows)], RECIPES["f32"], limit)

    assert stored.row_splits[0].row_begin == 0
    assert stored.row_splits[-1].row_end == count * rows
    for before, after in zip(stored.row_splits, stored.row_splits[1:], strict=False):
        assert before.row_end == after.row_begin
    for part in stored.row_splits:
        assert part.row_begin % rows == 0
        assert part.rows % rows == 0
        assert all(tensor.nbytes <= limit for tensor in part.tensors)
    # As few parts as that allows, and of about equal size.
    assert len(stored.row_splits) == -(-count // -(-count // -(-count // fitting)))


def test_an_expert_larger_than_the_limit_is_refused_by_name() -> None:
    with pytest.raises(QuantizationError, match="`e`: 96 rows do not fit"):
        storage_plan([experts(8, 96)], RECIPES["f32"], 96 * 64 * 4 - 1)


def test_a_row_group_larger_than_the_limit_is_refused_by_name() -> None:
    with pytest.raises(QuantizationError, match="`w`"):
        storage_plan([matrix(1024, 1024)], RECIPES["f32"], ROW_ALIGNMENT * 1024 * 4 - 1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", preset_names())
def test_no_stored_tensor_of_a_released_size_exceeds_a_webgpu_binding(
    preset: str, recipe: str, tied: bool
) -> None:
    parameters = parameter_table(replace(Gemma4Config.from_preset(preset), ties_head=tied))

    plan = storage_plan(parameters, RECIPES[recipe], 128 * MIB)

    tensors = [tensor for stored in plan for tensor in stored.tensors]
    assert max(tensor.nbytes for tensor in tensors) <= 128 * MIB
    assert len({tensor.name for tensor in tensors}) == len(tensors)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_head_of_its_own_is_stored_as_the_embedding_is(recipe: str) -> None:
    config = replace(Gemma4Config.from_preset("gemma-4-E2B-it"), ties_head=False)
    plan = {
        one.parameter.name: one
        for one in storage_plan(parameter_table(config), RECIPES[recipe], 128 * MIB)
    }
    head, embedding = plan["lm_head"], plan["embed_tokens"]
    assert head.scheme == embedding.scheme
    assert [(t.shape, t.dtype) for t in head.tensors] == [
        (t.shape, t.dtype) for t in embedding.tensors
    ]
    assert list(plan)[-1] == "lm_head", "the others keep their places in the packed tuple"


@pytest.mark.parametrize("recipe", ["q4f16", "q4f16s", "q4f16m", "q4f16l", "q4kf16", "q4kf16m"])
def test_bytes_of_e2b_in_four_bits(recipe: str) -> None:
    """4.5 bits, 6.5 or 8.5 for what the recipe names, 8.5 for the small per-layer projections."""
    parameters = parameter_table(Gemma4Config.from_preset("gemma-4-E2B-it"))
    elements = {role: 0 for role in Role}
    for parameter in parameters:
        rows, *cols = parameter.shape
        elements[parameter.role] += rows * (cols[0] if cols else 1)

    plan = storage_plan(parameters, RECIPES[recipe], 128 * MIB)

    small, vectors = elements[Role.PER_LAYER_LINEAR], elements[Role.VECTOR]
    fine = 0
    if recipe != "q4f16s":
        fine += elements[Role.TOKEN_EMBEDDING]
    if recipe in ("q4f16m", "q4f16l", "q4kf16m"):
        fine += sum(p.shape[0] * p.shape[1] for p in parameters if ".self_attn." in p.name
                    and p.role is Role.LINEAR)  # fmt: skip
    coarse = sum(elements.values()) - fine - small - vectors
    bits = 6.5 if recipe in ("q4f16m", "q4kf16", "q4kf16m") else 8.5
    stored = sum(tensor.nbytes for entry in plan for tensor in entry.tensors)
    assert stored * 8 == coarse * 4.5 + fine * bits + small * 8.5 + vectors * 32


@pytest.mark.parametrize("recipe", ["q4f16", "q4f32"])
def test_a_drafters_head_stays_in_four_bits(recipe: str) -> None:
    found = RECIPES[recipe]
    assert found.scheme(matrix(64, 64, Role.DRAFTER_HEAD)) == found.schemes[Role.LINEAR]
    for role in (Role.TOKEN_EMBEDDING, Role.LM_HEAD):
        assert found.scheme(matrix(64, 64, role)) == GroupScheme(8, found.activation_dtype)


def test_patterns_of_a_user_count_before_those_of_a_recipe() -> None:
    attention = replace(matrix(64, 64), name="layers.0.self_attn.o_proj")
    large = RECIPES["q4f16l"]
    assert large.scheme(attention) == GroupScheme(8, "float16")
    own = replace(large, overrides=(("*o_proj", GroupScheme(4, "float16")),))
    assert own.scheme(attention) == GroupScheme(4, "float16")
    assert set(own.all_schemes) >= {GroupScheme(4, "float16"), GroupScheme(8, "float16")}


def test_a_pattern_leaves_vectors_and_routers_as_they_are() -> None:
    everything = replace(RECIPES["f32"], overrides=(("*", GroupScheme(4, "float16")),))
    vector = Parameter("norm", Role.VECTOR, (64,), (Source("norm.weight", (64,)),))
    assert everything.scheme(vector) == DenseScheme("float32")
    assert everything.scheme(matrix(64, 64, Role.ROUTER)) == DenseScheme("float32")
    assert everything.scheme(matrix(64, 64)) == GroupScheme(4, "float16")


def test_a_pattern_gives_towers_what_fits_them() -> None:
    everything = replace(RECIPES["q4f16"], overrides=(("*", GroupScheme(4, "float16")),))
    for cols, expected in ((224, GroupScheme(4, "float16")), (4304, DenseScheme("float16"))):
        assert everything.scheme(matrix(64, cols, Role.VISION_LINEAR)) == expected


@pytest.mark.parametrize("recipe", ["q4f16", "q4f32", "q8f16"])
def test_towers_have_eight_bits_and_dense_rows_where_groups_do_not_fit(recipe: str) -> None:
    dtype = RECIPES[recipe].activation_dtype
    for cols in (256, 768, 1152):
        assert RECIPES[recipe].scheme(matrix(64, cols, Role.VISION_LINEAR)) == GroupScheme(8, dtype)
    for cols in (4304, 224, 48, 1):  # no multiple of a group, or narrow
        assert RECIPES[recipe].scheme(matrix(64, cols, Role.VISION_LINEAR)) == DenseScheme(dtype)


@pytest.mark.parametrize("recipe", ["f16", "f32"])
def test_towers_are_dense_in_float_recipes(recipe: str) -> None:
    dense = DenseScheme(RECIPES[recipe].activation_dtype)
    assert RECIPES[recipe].scheme(matrix(64, 768, Role.VISION_LINEAR)) == dense
