"""The drafter's part of a plan."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.planning.drafter_plan import plan_drafter
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.planning.plan_report import plan_json, plan_text
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.unit.model_spec.config.test_drafter import E2B

WEBGPU = target_spec("webgpu")


def plans() -> list:  # type: ignore[type-arg]
    plain = Gemma4Config.from_preset("gemma-4-E2B-it")
    drafted = replace(plain, drafter=read_drafter(E2B))
    return [make_plan(config, "q4f16", WEBGPU, 4096, 512) for config in (plain, drafted)]


def test_a_plan_without_a_drafter_says_nothing_of_it() -> None:
    plain, _ = plans()
    assert plain.drafter is None
    assert "drafter" not in plan_json(plain, {})
    assert "drafter" not in plan_text(plain, "E2B")


def test_a_drafter_adds_to_the_download_alone() -> None:
    plain, drafted = plans()
    assert drafted.drafter.parameters == 77_731_332 + 262_144
    assert drafted.download_bytes - plain.download_bytes == drafted.drafter.weights_bytes
    assert drafted.recipe == plain.recipe
    assert drafted.device_memory_bytes == plain.device_memory_bytes
    assert drafted.requirements == plain.requirements
    assert drafted.read_per_token == plain.read_per_token
    assert drafted.provenance() == plain.provenance()
    assert drafted.parameter_count - plain.parameter_count == drafted.drafter.parameters


def test_people_and_programs_are_told() -> None:
    _, drafted = plans()
    assert "and the drafter, if it is used" in plan_text(drafted, "E2B")
    assert plan_json(drafted, {})["drafter"]["weights_bytes"] == drafted.drafter.weights_bytes


def test_a_gpu_has_the_splits_of_the_attention_besides() -> None:
    drafted = replace(Gemma4Config.from_preset("gemma-4-E2B-it"), drafter=read_drafter(E2B))
    found = [
        plan_drafter(drafted, RECIPES["q4f16"], target_spec(t), None) for t in ("webgpu", "cpu")
    ]
    # 9 tokens, 64 splits of a full layer, 8 heads of 512 channels with maximum and sum.
    splits = 9 * 64 * 8 * (512 * 2 + 8)
    assert found[0].activation_bytes - found[1].activation_bytes == splits
