"""Memory by the share of experts on the device, against sums by hand."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.planning.expert_shares import SHARES, ExpertShare, expert_shares
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.targets import target_spec

EXPERTS = 22_837_985_280 * 9 // 16
"""Bytes in groups of 32 with a scale of 16 bits, of 30 layers with 128 experts each."""
TITLE = "Experts in the host's memory"


def plan_of(preset: str, target: str = "cuda") -> BuildPlan:
    return make_plan(Gemma4Config.from_preset(preset), "q4f16", target_spec(target), 8192, 512)


@pytest.mark.parametrize(
    ("share", "layers"), [(1.0, 0), (0.99, 1), (0.5, 15), (0.49, 16), (0.01, 30), (0.0, 30)]
)
def test_whole_layers_are_in_one_place(share: float, layers: int) -> None:
    plan = plan_of("gemma-4-26B-A4B-it")
    away = EXPERTS // 30 * layers
    assert expert_shares(plan, [share]) == (
        ExpertShare(
            share=share,
            host_layers=layers,
            device_bytes=plan.device_memory_bytes - away,
            host_bytes=away,
            bytes_per_token=away * 8 // 128,
        ),
    )


def test_text_and_json_show_them() -> None:
    plan = plan_of("gemma-4-26B-A4B-it")
    lines = plan_text(plan, "26B").splitlines()
    begin = lines.index(TITLE)
    assert " ".join(lines[begin + 4].split()) == "--experts 50% 8.18 GiB 5.98 GiB 382.9 MiB"
    shown = plan_json(plan, {})["expert_shares"]
    assert [one["share"] for one in shown] == [*SHARES]
    assert shown[-1]["host_bytes"] == EXPERTS


@pytest.mark.parametrize(
    ("preset", "target"),
    [
        *((preset, "cuda") for preset in preset_names() if "A4B" not in preset),
        *(("gemma-4-26B-A4B-it", target) for target in ("cpu", "metal", "webgpu")),
    ],
)
def test_there_are_none_without_experts_or_where_memory_is_one(preset: str, target: str) -> None:
    plan = plan_of(preset, target)
    assert expert_shares(plan) == ()
    assert "expert_shares" not in plan_json(plan, {})
    assert TITLE not in plan_text(plan, preset)
