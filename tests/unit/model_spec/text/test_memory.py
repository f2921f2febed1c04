"""Bytes of a position's activations, by sums that are made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.memory import activation_memory
from tests.models import DENSE_LIKE, E2B_LIKE, MOE_LIKE, config_file


def config_of(text: Mapping[str, Any]) -> Gemma4Config:
    return Gemma4Config.from_dict(config_file(text, "hub", "float32"))


@pytest.mark.parametrize(("dtype", "item"), [("float16", 2), ("float32", 4)])
def test_a_layer_holds_residual_heads_and_gated_product(dtype: str, item: int) -> None:
    memory = activation_memory(config_of(DENSE_LIKE), dtype)
    residual, gated = 4 * 96, 4 * 192
    # The widest: full layers have 8 heads of 64 and 2 keys, which are values, too; sliding ones
    # 8 + 4 + 4 of 32.
    projected, query = 4 * (8 + 2) * 64, 8 * 64
    layer = (residual, residual, projected, 4 * query, item * query, gated)
    assert memory.together == (layer,)
    assert memory.tensors == tuple(sorted(set(layer)))


def test_layers_that_share_keys_are_as_wide_as_the_widest() -> None:
    (layer, *_) = activation_memory(config_of(E2B_LIKE), "float16").together
    projected, gated = layer[2], layer[5]
    assert gated == 4 * 2 * 128, "the double width of layers that share"
    assert projected == 4 * (4 + 2) * 64, "keys and values of a full layer that owns them"


def test_per_layer_inputs_live_through_all_layers_and_are_made_of_two_others() -> None:
    with_inputs = activation_memory(config_of(E2B_LIKE), "float16")
    inputs = 4 * 7 * 32
    layer, made = with_inputs.together
    assert layer[-1] == inputs
    query, gated = 4 * 64, 2 * 128  # of layers that share keys, whose MLP is twice as wide
    assert made == (4 * 96, 4 * 96, inputs, inputs, inputs, 2 * max(query, gated))
    without = activation_memory(
        config_of({**E2B_LIKE, "hidden_size_per_layer_input": 0}), "float16"
    )
    assert without.together == (layer[:-1],)


def test_experts_hold_the_pairs_of_a_position() -> None:
    memory = activation_memory(config_of(MOE_LIKE), "float16")
    residual, query = 4 * 64, 4 * 64
    pairs, gated = 4 * 2 * 64, 4 * 2 * 32
    attention = (4 * query, 2 * query)
    assert memory.together[1] == (residual, residual, *attention, pairs, pairs, gated)
    assert {pairs, gated} <= set(memory.tensors)


def test_every_tensor_is_one_of_a_set_and_listed_once() -> None:
    for text in (E2B_LIKE, DENSE_LIKE, MOE_LIKE):
        memory = activation_memory(config_of(text), "float16")
        assert list(memory.tensors) == sorted({size for one in memory.together for size in one})
