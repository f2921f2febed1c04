"""The plan against published counts and hand-made sums: nothing here comes from the code itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from operator import mul

import pytest

from gemma4_compile.errors import LoweringError, QuantizationError, UsageError
from gemma4_compile.media.sizes import BUDGETS
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.config.vision import VisionConfig
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.planning.parameter_kinds import KINDS
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.planning.recipe_plan import RecipePlan
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.webgpu import LIMITS as WEBGPU_LIMITS
from tests.marks import slow_unless

MIB, GIB = 1 << 20, 1 << 30
WEBGPU = target_spec("webgpu")

# Counted on transformers' own modules, on the meta device.
PARAMETERS = {
    "gemma-4-E2B-it": {
        "attention": 278_396_928,
        "dense_mlp": 1_557_135_360,
        "per_layer_projections": 27_525_120 + 13_762_560,
        "token_embedding": 402_653_184,
        "per_layer_embedding": 2_348_810_240,
        "vectors": 285_987,
    },
    "gemma-4-E4B-it": {
        "attention": 587_202_560,
        "dense_mlp": 3_303_014_400,
        "per_layer_projections": 55_050_240 + 27_525_120,
        "token_embedding": 671_088_640,
        "per_layer_embedding": 2_818_572_288,
        "vectors": 560_170,
    },
    "gemma-4-12B-it": {
        "attention": 2_406_481_920,
        "dense_mlp": 8_493_465_600,
        "token_embedding": 1_006_632_960,
        "vectors": 769_840,
    },
    "gemma-4-26B-A4B-it": {
        "attention": 1_110_179_840,
        "dense_mlp": 535_265_280,
        "router": 10_813_440,
        "experts": 22_837_985_280,
        "token_embedding": 738_197_504,
        "vectors": 700_446,
    },
    "gemma-4-31B-it": {
        "attention": 8_477_736_960,
        "dense_mlp": 20_808_990_720,
        "token_embedding": 1_409_286_144,
        "vectors": 1_331_516,
    },
    "gemma-3n-E2B-it": {
        "attention": 293_601_280,
        "dense_mlp": 1_509_949_440,
        "streams": 33_030_144,
        "per_layer_projections": 47_185_920,
        "token_embedding": 537_395_200,
        "per_layer_embedding": 2_013_265_920,
        "vectors": 754_784,
    },
    "gemma-3n-E4B-it": {
        "attention": 335_544_320,
        "dense_mlp": 3_523_215_360,
        "streams": 34_340_864,
        "per_layer_projections": 55_050_240,
        "token_embedding": 537_395_200,
        "per_layer_embedding": 2_348_810_240,
        "vectors": 879_344,
    },
}
READ_PER_TOKEN = {
    "gemma-4-E2B-it": 2_279_473_152,
    "gemma-4-E4B-it": 4_643_880_960,
    "gemma-4-12B-it": 11_906_580_480,
    "gemma-4-26B-A4B-it": 3_821_830_144,
    "gemma-4-31B-it": 30_696_013_824,
    "gemma-3n-E2B-it": 2_421_161_984,
    "gemma-3n-E4B-it": 4_485_545_984,
}
# MiB of K and V in float16 at 4K, 32K and 128K, when sliding layers keep their window and no more;
# and of the same layers in a padded cache.
KV_MIB = {
    "gemma-4-E2B-it": ((30, 120), (198, 960), (774, 3840)),
    "gemma-4-E4B-it": ((84, 384), (532, 3072), (2068, 12288)),
    "gemma-4-12B-it": ((384, 3072), (832, 24576), (2368, 98304)),
    "gemma-4-26B-A4B-it": ((280, 1920), (840, 15360), (2760, 61440)),
    "gemma-4-31B-it": ((1120, 7680), (3360, 61440), (11040, 245760)),
    # 20 layers own 2 KiB a token, 4 of them of the whole context.
    "gemma-3n-E2B-it": ((48, 160), (272, 1280), (1040, 5120)),
    "gemma-3n-E4B-it": ((48, 160), (272, 1280), (1040, 5120)),
}
CONTEXTS = (4096, 32_768, 131_072)


@cache
def recipes_of(config: Gemma4Config, most_bytes: int | None) -> tuple[RecipePlan, ...]:
    """Every recipe's weights, for plans that differ in other things: most of a plan's time."""
    target = replace(WEBGPU, max_binding_bytes=most_bytes)
    return make_plan(config, "q4f16", target, 8192, 512).recipes


def plan_of(
    preset: str, quant: str = "q4f16", context: int = 8192, chunk: int = 512, target: str = "webgpu"
) -> BuildPlan:
    config = Gemma4Config.from_preset(preset)
    return make_plan(config, quant, target_spec(target), context, chunk, CONTEXTS)


def test_every_preset_is_known_here() -> None:
    assert set(preset_names()) == set(PARAMETERS) == set(READ_PER_TOKEN) == set(KV_MIB)


@pytest.mark.parametrize("preset", PARAMETERS)
def test_parameters_by_kind(preset: str) -> None:
    plan = plan_of(preset)
    assert dict(plan.parameters) == PARAMETERS[preset]
    assert set(dict(plan.parameters)) <= set(KINDS)
    assert plan.parameter_count == sum(PARAMETERS[preset].values())
    assert plan.checkpoint_bytes == 2 * plan.parameter_count


@pytest.mark.parametrize("preset", READ_PER_TOKEN)
def test_what_a_token_reads(preset: str) -> None:
    assert plan_of(preset).read_per_token == READ_PER_TOKEN[preset]


@pytest.mark.parametrize("preset", KV_MIB)
def test_keys_and_values_against_a_padded_cache(preset: str) -> None:
    plan = plan_of(preset, chunk=1)  # a ring is then exactly its window
    found = [
        (kv.total_bytes / MIB, kv.padded_bytes / MIB)
        for kv in plan.kv
        if kv.context_length in CONTEXTS
    ]
    assert found == [*KV_MIB[preset]]


def test_rings_hold_a_prefill_chunk_more() -> None:
    kv = plan_of("gemma-4-E2B-it").kv[0]
    assert kv.context_length == 4096
    assert kv.sliding_bytes == 12 * 1024 * 1024  # 12 layers, 1024 rows of 1 KiB
    assert kv.full_bytes == 3 * 4096 * 2048
    assert kv.total_bytes == kv.sliding_bytes + kv.full_bytes


def missing_groups_bytes(preset: str) -> int:
    """Scales and minima of the groups that the last blocks of rows lack, two bytes each."""
    table = model_parameters(Gemma4Config.from_preset(preset), COMPONENTS)
    shapes = [one.shape for one in table]
    large = [shape for shape in shapes if len(shape) == 2 and shape[1] % 32 == 0]
    return sum(2 * rows * (-cols % 256 // 32) for rows, cols in large)


@pytest.mark.parametrize("preset", preset_names())
def test_bytes_by_recipe(preset: str) -> None:
    counts = PARAMETERS[preset]
    vectors, router = counts["vectors"], counts.get("router", 0)
    small = counts.get("per_layer_projections", 0)
    head, attention = counts["token_embedding"], counts["attention"]
    large = sum(counts.values()) - vectors - router - small - head - attention
    bits = {  # large matrices, attention, head, per-layer projections, router
        "q4f16": (4.5, 4.5, 8.5, 8.5, 16),
        "q4f16s": (4.5, 4.5, 4.5, 8.5, 16),
        "q4f16m": (4.5, 6.5, 6.5, 8.5, 16),
        "q4f16l": (4.5, 8.5, 8.5, 8.5, 16),
        "q4f32": (5, 5, 9, 9, 32),
        "q4kf16": (4.5, 4.5, 6.5, 8.5, 16),
        "q4kf16m": (4.5, 6.5, 6.5, 8.5, 16),
        "q8f16": (8.5, 8.5, 8.5, 8.5, 16),
        "f16": (16, 16, 16, 16, 16),
        "f32": (32, 32, 32, 32, 32),
    }
    for recipe in plan_of(preset).recipes:
        sizes = (large, attention, head, small, router)
        expected = sum(map(mul, sizes, bits[recipe.name])) + vectors * 32
        if recipe.name.startswith("q4k"):
            expected += 8 * missing_groups_bytes(preset)
        assert recipe.weights_bytes * 8 == expected, recipe.name
        assert recipe.largest_binding_bytes <= 128 * MIB < recipe.largest_tensor_bytes
        assert recipe.problem is None


def test_largest_tensors_of_e2b_before_and_after_splitting() -> None:
    recipe = plan_of("gemma-4-E2B-it").recipe
    assert recipe.largest_tensor_bytes == 262_144 * 8960 // 2  # the per-layer table, 4 bits
    assert recipe.most_parts == -(-recipe.largest_tensor_bytes // (128 * MIB))
    assert recipe.largest_binding_bytes >= recipe.largest_tensor_bytes / recipe.most_parts


def test_bytes_that_a_token_reads_of_the_experts() -> None:
    counts = PARAMETERS["gemma-4-26B-A4B-it"]
    recipe = plan_of("gemma-4-26B-A4B-it").recipe
    read = READ_PER_TOKEN["gemma-4-26B-A4B-it"] - counts["router"]
    fine = counts["token_embedding"] * 4
    assert recipe.bytes_per_token * 8 == read * 4.5 + fine + counts["router"] * 16


def test_device_memory_is_weights_state_and_activations() -> None:
    plan = plan_of("gemma-4-31B-it", context=32_768)
    assert plan.kv_bytes == (50 * 1536 * 16_384) + 10 * 32_768 * 8192
    total = plan.recipe.weights_bytes + plan.kv_bytes + plan.activation_bytes
    assert plan.device_memory_bytes == total
    assert plan.activation_bytes < 0.02 * total


def test_state_in_float32_is_twice_as_large() -> None:
    half, whole = plan_of("gemma-4-E4B-it"), plan_of("gemma-4-E4B-it", "q4f32")
    assert whole.kv_bytes == 2 * half.kv_bytes
    assert half.features == ("shader-f16",)
    assert whole.features == ()
    assert plan_of("gemma-4-E4B-it", target="cpu").features == ()
    assert plan_of("gemma-4-E4B-it", target="metal").features == ()


@pytest.mark.parametrize(
    ("size", "quant", "context", "parts"),
    slow_unless(
        lambda *one: one == ("E2B", "q4f32", 131_072, 2),
        [
            ("E2B", "q4f16", 131_072, 1),
            ("E2B", "q4f32", 131_072, 2),
            ("31B", "q4f16", 32_768, 1),
            ("31B", "q4f16", 32_769, 2),
            ("31B", "q4f32", 65_536, 4),
            ("31B", "q4f16", 262_144, 8),
        ],
    ),
)
def test_keys_that_no_binding_holds_are_in_parts(
    size: str, quant: str, context: int, parts: int
) -> None:
    config = Gemma4Config.from_preset(f"gemma-4-{size}-it")

    def planned(target: TargetSpec) -> BuildPlan:
        recipes = recipes_of(config, target.max_binding_bytes)
        return make_plan(config, quant, target, context, 512, recipes=recipes)

    for limits in WEBGPU_LIMITS:
        plan = planned(target_spec("webgpu", limits))
        plan.check()
        assert plan.kv_parts == parts
        assert plan.state_tensor_bytes <= 128 * MIB
        assert plan.largest_binding_bytes <= 128 * MIB
    native = planned(target_spec("cuda"))
    native.check()
    assert native.kv_parts == 1
    assert 0 <= plan.kv_bytes - native.kv_bytes <= 2 * 4 * 10 * parts * 4 * 512  # a row a part


@pytest.mark.slow
def test_keys_of_a_position_or_of_a_window_that_no_binding_holds_are_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-31B-it", frozenset({Modality.TEXT}))
    narrow = replace(WEBGPU, max_binding_bytes=16 * 256 * 2 * 1024)
    plan = make_plan(config, "q4f16", narrow, 8192, 1)
    plan.check()
    with pytest.raises(UsageError, match="--prefill-chunk 33: the keys of a window") as caught:
        make_plan(config, "q4f16", narrow, 8192, 33).check()
    assert caught.value.hint == "--prefill-chunk 1 fits"
    none = replace(WEBGPU, max_binding_bytes=16 * 256 * 2 * 1024 - 1)
    with pytest.raises(UsageError, match="the keys of a window") as caught:
        make_plan(config, "q4f16", none, 8192, 1).check()
    assert caught.value.hint == "choose a smaller --quant"


def test_a_chunk_that_no_binding_holds_is_refused_with_one_that_fits() -> None:
    with pytest.raises(UsageError, match="--prefill-chunk 2000: one activation") as caught:
        plan_of("gemma-4-31B-it", chunk=2000).check()
    fits = 128 * MIB // (21504 * 4)
    assert caught.value.hint == f"--prefill-chunk {fits} fits"
    plan_of("gemma-4-31B-it", chunk=fits).check()


def test_a_recipe_that_cannot_store_a_matrix_is_shown_and_refused() -> None:
    config = replace(Gemma4Config.from_preset("gemma-4-E2B-it"), intermediate_size=6160)
    plan = make_plan(config, "q4f16", WEBGPU, 8192, 512)
    assert plan.recipe.problem is not None
    assert [recipe.name for recipe in plan.recipes if recipe.problem is None] == ["f16", "f32"]
    with pytest.raises(QuantizationError, match="groups of 32"):
        plan.check()


def test_the_largest_binding_may_be_the_states() -> None:
    plan = plan_of("gemma-4-31B-it", context=32_768)
    assert plan.largest_binding_bytes == plan.state_tensor_bytes == 128 * MIB
    assert plan.requirements.max_binding_bytes == 128 * MIB


SEES = frozenset({Modality.TEXT, Modality.IMAGE})


def plan_with_pictures(
    size: str, tokens: int, chunk: int = 512, quant: str = "q4f16", context: int = 8192
) -> BuildPlan:
    config = Gemma4Config.from_preset(f"gemma-4-{size}-it", SEES)
    recipes = recipes_of(config, WEBGPU.max_binding_bytes)
    return make_plan(config, quant, WEBGPU, context, chunk, image_tokens=tokens, recipes=recipes)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["12B", "26B-A4B", "31B"])
def test_a_chunk_holds_a_picture_whose_rows_see_each_other(size: str) -> None:
    for tokens in BUDGETS:
        plan_with_pictures(size, tokens, chunk=tokens).check()
        with pytest.raises(UsageError, match=f"a picture takes up to {tokens} rows") as caught:
            plan_with_pictures(size, tokens, chunk=tokens - 1).check()
        smaller = [each for each in BUDGETS if each < tokens]
        other = f", --image-tokens {smaller[-1]}" if smaller else ""
        assert str(caught.value.hint).startswith(f"--prefill-chunk {tokens} or more{other}, or")
    with pytest.raises(UsageError) as caught:
        plan_with_pictures(size, 560, chunk=300, context=300).check()
    assert str(caught.value.hint).startswith("--context 560 or more, --image-tokens 280, or")


@pytest.mark.parametrize("size", ["E2B", "E4B"])
def test_causal_pictures_may_be_cut_by_chunks(size: str) -> None:
    plan_with_pictures(size, 1120, chunk=16).check()


@pytest.mark.slow
def test_a_larger_picture_needs_more_memory() -> None:
    plans = {tokens: plan_with_pictures("E2B", tokens) for tokens in BUDGETS}
    up = 9 * 3072 * 4  # bytes of a block between the feed-forward's two layers
    for tokens, plan in plans.items():
        assert plan.picture_tensor_bytes == tokens * up
    assert plans[70].activation_bytes == plans[140].activation_bytes, "a prefill chunk needs more"
    assert plans[1120].activation_bytes > 1120 * up
    larger = plans[1120].activation_bytes - plans[560].activation_bytes
    assert larger >= 560 * up
    assert plans[1120].device_memory_bytes - plans[560].device_memory_bytes == larger
    assert plans[1120].largest_binding_bytes == max(
        plans[280].largest_binding_bytes, plans[1120].picture_tensor_bytes
    )


def test_a_picture_that_no_binding_holds_is_refused_with_one_that_fits() -> None:
    plan = plan_with_pictures("31B", 1120, chunk=1120, quant="q4f32")
    nbytes = 1120 * 9 * 4304 * 4
    with pytest.raises(UsageError, match=f"--image-tokens 1120: .* {nbytes} bytes") as caught:
        plan.check()
    assert caught.value.hint == "--image-tokens 560 fits"
    plan_with_pictures("31B", 560, chunk=560, quant="q4f32").check()


def test_heads_of_a_tower_that_a_gpu_has_no_kernel_for_are_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it", None)
    assert isinstance(config.vision, VisionConfig)
    config = replace(config, vision=replace(config.vision, head_dim=12))
    with pytest.raises(LoweringError, match=r"^head_dim 12: "):
        make_plan(config, "q4f16", WEBGPU, 8192, 512).check()
    make_plan(config, "q4f16", target_spec("cpu"), 8192, 512).check()


def test_a_sound_that_no_binding_holds_is_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it", None)
    assert isinstance(config.audio, AudioConfig)
    plan = make_plan(config, "q4f16", WEBGPU, 8192, 512)
    plan.check()
    assert plan.sound_tensor_bytes == 750 * 2 * 2 * 64 * 128
    audio = replace(config.audio, conv_channels=(1024, 32))
    with pytest.raises(UsageError, match=r"^one activation of a sound needs") as caught:
        make_plan(replace(config, audio=audio), "q4f16", WEBGPU, 8192, 512).check()
    assert caught.value.hint == "leave `audio` out of --modalities"


def test_an_encoder_keeps_nothing_between_calls() -> None:
    config = Gemma4Config.from_preset("embeddinggemma-2")
    plan = make_plan(config, "q4f16", target_spec("webgpu"), 2048, 2048)
    assert plan.problem is None
    assert plan.parameter_count == 271_002_648
    assert (plan.kv_bytes, plan.kv_parts, plan.state_tensor_bytes) == (0, 1, 0)
    assert plan.activation_tensor_bytes == 2048 * 4 * 24 * 512
    wide = make_plan(config, "q4f16", target_spec("webgpu"), 8192, 8192)
    with pytest.raises(UsageError, match="one activation needs") as caught:
        wide.check()
    assert caught.value.hint == f"--context {2**27 // (4 * 24 * 512)} fits"
