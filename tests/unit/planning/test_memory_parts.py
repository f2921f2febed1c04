"""Memory by part, against sums that are made by hand of the published counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.planning.weight_parts import PARTS
from gemma4_compile.targets import target_spec
from tests.presets import GEMMA4
from tests.unit.model_spec.config.test_drafter import E2B

SEES = frozenset({Modality.TEXT, Modality.IMAGE})
WEBGPU = target_spec("webgpu")
Q4, Q8 = 4.5 / 8, 8.5 / 8  # bytes of a weight in groups of 32 with a scale of 16 bits


@pytest.mark.parametrize("preset", GEMMA4)
def test_parts_add_up_to_the_memory_of_the_plan(preset: str) -> None:
    plan = make_plan(Gemma4Config.from_preset(preset, SEES), "q4f16", WEBGPU, 4096, 256)
    parts = memory_parts(plan)
    assert sum(parts.values()) == plan.device_memory_bytes
    assert [*parts] == [part for part in PARTS if part in parts]
    assert {"decoder", "embedding", "vision", "kv", "activations"} <= set(parts)
    assert ("experts" in parts) == ("A4B" in preset)


def test_tables_and_experts_have_the_bytes_of_their_schemes() -> None:
    small = make_plan(Gemma4Config.from_preset("gemma-4-E2B-it"), "q4f16", WEBGPU, 4096, 256)
    found = memory_parts(small)
    assert found["per_layer_embedding"] == 2_348_810_240 * Q4
    assert found["embedding"] == 402_653_184 * Q8
    experts = make_plan(Gemma4Config.from_preset("gemma-4-26B-A4B-it"), "q4f16", WEBGPU, 4096, 256)
    assert memory_parts(experts)["experts"] == 22_837_985_280 * Q4


ROW = 35 * 256 * Q4


@pytest.mark.parametrize("target", ["cuda", "webgpu"])
def test_a_table_on_the_host_leaves_the_rows_of_a_chunk(target: str) -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")
    plan = make_plan(config, "q4f16", target_spec(target), 8192, 512)
    without = bytes_with_table_on_host(plan)
    assert without == plan.device_memory_bytes - (262_144 - 512) * ROW
    memory = plan_json(plan, {})["device_memory"]
    assert memory["total_bytes_with_table_on_host"] == without
    assert plan.provenance()["host_table_bytes"] == plan.device_memory_bytes - without
    lines = [line.strip() for line in plan_text(plan, "E2B").splitlines()]
    shown = [one for one in lines if one.startswith("all, that table on the host")]
    assert bool(shown) == (target == "cuda"), "pages have no such option"
    assert all(one.split()[-2:] == [f"{without / 2**30:.2f}", "GiB"] for one in shown)


def test_models_without_a_table_have_none_on_the_host() -> None:
    plan = make_plan(Gemma4Config.from_preset("gemma-4-31B-it"), "q4f16", WEBGPU, 4096, 256)
    assert bytes_with_table_on_host(plan) is None
    assert plan_json(plan, {})["device_memory"]["total_bytes_with_table_on_host"] is None
    assert "host_table_bytes" not in plan.provenance()
    assert "--ple" not in plan_text(plan, "31B")


def test_a_drafter_counts_with_what_it_computes() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")
    alone = memory_parts(make_plan(config, "q4f16", WEBGPU, 4096, 256))
    assert "drafter" not in alone
    drafted = replace(config, drafter=read_drafter(E2B))
    plan = make_plan(drafted, "q4f16", WEBGPU, 4096, 256)
    assert plan.drafter is not None
    expected = plan.drafter.weights_bytes + plan.drafter.activation_bytes
    assert {**alone, "drafter": expected} == memory_parts(plan)


def test_text_and_json_show_the_parts() -> None:
    plan = make_plan(Gemma4Config.from_preset("gemma-4-E2B-it"), "q4f16", WEBGPU, 8192, 512)
    lines = plan_text(plan, "E2B").splitlines()
    table = PARTS["per_layer_embedding"]
    (shown,) = (one for one in lines if one.strip().startswith(table) and "GiB" in one)
    assert shown.split()[-2:] == ["1.23", "GiB"]
    values = plan_json(plan, {})
    assert values["device_memory"]["parts"] == memory_parts(plan)
    assert (
        sum(values["recipes"]["q8f16"]["parts"].values())
        == (values["recipes"]["q8f16"]["weights_bytes"])
    )
