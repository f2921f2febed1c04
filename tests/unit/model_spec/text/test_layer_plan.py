"""Layer plans of the released sizes, compared with facts read off transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text.layer_plan import layer_plans, rotary_plans

SLIDING, FULL = AttentionKind.SLIDING, AttentionKind.FULL


def plans(name: str) -> tuple[LayerPlan, ...]:
    return layer_plans(Gemma4Config.from_preset(name))


@pytest.mark.parametrize(
    ("name", "layers", "full_every", "owners", "sliding_source", "full_source"),
    [("gemma-4-E2B-it", 35, 5, 15, 13, 14), ("gemma-4-E4B-it", 42, 6, 24, 22, 23)],
)
def test_shared_layers_read_the_last_owner_of_their_kind(
    name: str, layers: int, full_every: int, owners: int, sliding_source: int, full_source: int
) -> None:
    found = plans(name)

    assert len(found) == layers
    for plan in found:
        assert plan.kind is (FULL if plan.index % full_every == full_every - 1 else SLIDING)
        assert plan.owns_kv == (plan.index < owners)
        source = full_source if plan.kind is FULL else sliding_source
        assert plan.kv_slot == (plan.index if plan.owns_kv else source)


def test_only_shared_layers_of_e2b_have_the_double_width() -> None:
    assert [plan.intermediate_size for plan in plans("gemma-4-E2B-it")] == [6144] * 15 + [
        12288
    ] * 20
    assert {plan.intermediate_size for plan in plans("gemma-4-E4B-it")} == {10240}


def test_31b_shares_a_projection_between_k_and_v_on_full_layers_only() -> None:
    found = plans("gemma-4-31B-it")

    assert [plan.kv_slot for plan in found] == list(range(60))
    for plan in found:
        full = plan.kind is FULL
        assert plan.value_is_key == full
        assert plan.num_key_value_heads == (4 if full else 16)
        assert plan.head_dim == (512 if full else 256)
        assert plan.window == (None if full else 1024)


@pytest.mark.parametrize("name", ["gemma-4-E2B-it", "gemma-4-E4B-it", "gemma-4-31B-it"])
def test_full_layers_rotate_a_quarter_of_the_pairs_and_divide_by_the_whole_head(name: str) -> None:
    rotary = rotary_plans(Gemma4Config.from_preset(name))

    assert (rotary[SLIDING].head_dim, rotary[SLIDING].pairs, rotary[SLIDING].theta) == (
        256,
        128,
        1e4,
    )
    assert (rotary[FULL].head_dim, rotary[FULL].pairs, rotary[FULL].theta) == (512, 64, 1e6)
    assert (rotary[SLIDING].offset, rotary[FULL].offset) == (0, 128)


def test_a_shared_layer_without_a_source_of_its_kind_is_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")

    with pytest.raises(ConfigError, match="layer 4 shares"):
        layer_plans(replace(config, num_kv_shared_layers=31))


def test_a_shared_layer_whose_heads_differ_from_its_source_is_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-E4B-it")
    heads = list(config.num_key_value_heads)
    heads[30] = 4

    with pytest.raises(ConfigError, match="layer 30 reads the keys of layer 22"):
        layer_plans(replace(config, num_key_value_heads=tuple(heads)))


def test_two_head_sizes_within_one_kind_are_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-31B-it")
    head_dim = list(config.head_dim)
    head_dim[0] = 128

    with pytest.raises(ConfigError, match=r"sliding_attention.*different head_dim"):
        rotary_plans(replace(config, head_dim=tuple(head_dim)))
