"""Which of a target's keys a drafter reads, and which drafters do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.layer_plan import check_fit, drafter_plans
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from tests import models
from tests.drafters import drafter_config

# Layers of sliding and full attention that a drafter reads, as released.
RELEASED = {
    "gemma-4-E2B-it": (13, 14),
    "gemma-4-E4B-it": (22, 23),
    "gemma-4-12B-it": (46, 47),
    "gemma-4-26B-A4B-it": (28, 29),
    "gemma-4-31B-it": (58, 59),
}


def target_of(kind: str) -> Gemma4Config:
    return Gemma4Config.from_dict(models.config_file(models.KINDS[kind], "hub", "float32"))


@pytest.mark.parametrize("preset", RELEASED)
def test_a_drafter_reads_the_last_owner_of_each_kind(preset: str) -> None:
    target = Gemma4Config.from_preset(preset)
    first, last = 0, target.num_hidden_layers - 1
    text: dict[str, Any] = {
        "model_type": "gemma4_text",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_key_value_heads[first],
        "num_global_key_value_heads": target.num_key_value_heads[last],
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": target.sliding_window,
    }
    values = {
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target.hidden_size,
        "text_config": text,
        "dtype": "bfloat16",
    }
    drafter = read_drafter(values)
    check_fit(drafter, target)
    owners = {plan.kv_slot: plan.index for plan in layer_plans(target) if plan.owns_kv}
    sliding, full = RELEASED[preset]
    read = [owners[plan.kv_slot] for plan in drafter_plans(drafter, target)]
    assert read == [sliding, sliding, sliding, full]


@pytest.mark.parametrize("kind", models.KINDS)
def test_plans_own_nothing_and_take_the_target_s_shapes(kind: str) -> None:
    target, drafter = target_of(kind), read_drafter(drafter_config(kind))
    check_fit(drafter, target)
    for plan in drafter_plans(drafter, target):
        assert not plan.owns_kv
        source = next(
            one for one in layer_plans(target) if one.owns_kv and one.kv_slot == plan.kv_slot
        )
        assert (plan.head_dim, plan.window) == (source.head_dim, source.window)
        assert plan.rotary == source.rotary


@pytest.mark.parametrize(
    ("top", "text", "message"),
    [
        ({"backbone_hidden_size": 64}, {}, "`backbone_hidden_size`: expected 96"),
        ({}, {"vocab_size": 512}, "`vocab_size`: expected 256"),
        ({}, {"head_dim": 16}, "`head_dim of layer 0, which reads layer 1 of the target`"),
        ({}, {"global_head_dim": 32}, "`head_dim of layer 3, which reads layer 2"),
        ({}, {"num_key_value_heads": 2}, "`num_key_value_heads of layer 0"),
        ({}, {"sliding_window": 16}, "`sliding_window`: expected 8"),
    ],
)
def test_a_drafter_of_another_model_is_refused_by_name(
    top: dict[str, Any], text: dict[str, Any], message: str
) -> None:
    drafter = read_drafter({**drafter_config("e2b", **text), **top})
    with pytest.raises(ConfigError, match="the drafter does not fit its target") as raised:
        check_fit(drafter, target_of("e2b"))
    assert message in str(raised.value)
    assert "as in the target, found" in str(raised.value)


def test_another_rotation_is_refused() -> None:
    rope = {**models.E2B_LIKE["rope_parameters"]}
    rope["sliding_attention"] = {"rope_type": "default", "rope_theta": 5e5}
    drafter = read_drafter(drafter_config("e2b", rope_parameters=rope))
    with pytest.raises(ConfigError, match=r"rope_parameters\.sliding_attention"):
        check_fit(drafter, target_of("e2b"))


def test_a_kind_of_layer_that_the_target_has_not_is_refused() -> None:
    text = {**models.DENSE_LIKE, "layer_types": ["full_attention"] * 6}
    target = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    with pytest.raises(ConfigError, match="expected one of full_attention as in the target"):
        check_fit(read_drafter(drafter_config("dense")), target)
