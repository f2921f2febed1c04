"""How many splits a decode step's attention has, by layer."""

from dataclasses import replace

import pytest

from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.text.config import AttentionKind, Gemma4Config
from gemma4_compile.model_spec.text.layer_plan import LayerPlan, layer_plans

OPTIONS = AttentionOptions(sliding_splits=16, full_splits=128, max_blocks=256, split_channels=16384)


def plan_of(preset: str, kind: AttentionKind) -> LayerPlan:
    plans = layer_plans(Gemma4Config.from_preset(preset))
    return next(plan for plan in plans if plan.kind is kind)


@pytest.mark.parametrize(
    ("preset", "kind", "splits", "grain"),
    [
        ("gemma-4-E2B-it", AttentionKind.SLIDING, 8, 64),  # no more than the window has tiles
        ("gemma-4-31B-it", AttentionKind.SLIDING, 16, 64),
        ("gemma-4-E2B-it", AttentionKind.FULL, 128, 32),
        ("gemma-4-31B-it", AttentionKind.FULL, 64, 32),  # four KV heads fill the device sooner
    ],
)
def test_splits_follow_the_layer(preset: str, kind: AttentionKind, splits: int, grain: int) -> None:
    plan = plan_of(preset, kind)

    assert (OPTIONS.splits(plan), OPTIONS.grain(plan)) == (splits, grain)


def test_there_is_always_a_split() -> None:
    plan = plan_of("gemma-4-31B-it", AttentionKind.SLIDING)

    assert replace(OPTIONS, max_blocks=1).splits(plan) == 1
    assert replace(OPTIONS, split_channels=1 << 20).splits(plan) == 1
