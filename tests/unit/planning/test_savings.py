"""What choices save, against plans that are made with each."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import ALL_MODALITIES
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.planning.plan_report import LibraryNeeds, plan_json, plan_text
from gemma4_compile.planning.savings import savings
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import WORDS
from tests.unit.model_spec.config.test_drafter import E2B

SMALL = Gemma4Config.from_preset("gemma-4-E2B-it")


def planned(quant: str = "q4f16", context: int = 8192, chunk: int = 512) -> BuildPlan:
    return make_plan(SMALL, quant, target_spec("cuda"), context, chunk)


def saved(plan: BuildPlan) -> dict[str, int]:
    return {one.option: one.saves_bytes for one in savings(plan)}


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("--quant q4f16s", ("q4f16s", 8192, 512)),
        ("--context 4096", ("q4f16", 4096, 512)),
        ("--context 2048", ("q4f16", 2048, 512)),
        ("--prefill-chunk 256", ("q4f16", 8192, 256)),
        ("--prefill-chunk 128", ("q4f16", 8192, 128)),
    ],
)
def test_a_choice_saves_what_a_plan_with_it_needs_less(
    option: str, other: tuple[str, int, int]
) -> None:
    plan = planned()
    less = plan.device_memory_bytes - planned(*other).device_memory_bytes
    assert saved(plan)[option] == less > 0


def test_only_what_saves_is_shown_and_the_least_has_nothing_left() -> None:
    assert "--quant q8f16" not in saved(planned())
    assert "--quant q4f16" in saved(planned("q8f16"))
    least = saved(planned("q4f16s", 2048, 64))
    assert [*least] == ["--ple host"]
    odd = replace(SMALL, vocab_size=SMALL.vocab_size, hidden_size=1500)
    assert savings(make_plan(odd, "q4f16", target_spec("cuda"), 4096, 64)) == []


def test_a_smaller_recipe_may_be_more_exact() -> None:
    costs = {one.option: one.costs for one in savings(planned())}
    assert costs["--quant q4f16m"].startswith("nothing")
    assert costs["--quant q4f16s"].startswith("exactness")


def test_places_save_what_lies_on_the_host() -> None:
    plan = planned()
    without = bytes_with_table_on_host(plan)
    assert without is not None
    assert saved(plan)["--ple host"] == plan.device_memory_bytes - without
    web = make_plan(SMALL, "q4f16", target_spec("webgpu"), 8192, 512)
    assert "--ple host" not in saved(web)
    config = Gemma4Config.from_preset("gemma-4-26B-A4B-it")
    mixture = make_plan(config, "q4f16", target_spec("cuda"), 4096, 64)
    assert saved(mixture)["--experts 0%"] == memory_parts(mixture)["experts"]
    assert saved(mixture)["--experts 50%"] * 2 == memory_parts(mixture)["experts"]


def test_towers_and_the_drafter_save_what_they_take() -> None:
    sees = replace(
        Gemma4Config.from_preset("gemma-4-E2B-it", ALL_MODALITIES), drafter=read_drafter(E2B)
    )
    plan = make_plan(sees, "q4f16", target_spec("cuda"), 8192, 512)
    parts, found = memory_parts(plan), saved(plan)
    assert found["--modalities text"] == parts["vision"] + parts["audio"]
    assert found["without --drafter"] == parts["drafter"]


def test_libraries_in_float32_are_named_and_the_report_has_it_all() -> None:
    specs = {"default": replace(target_spec("webgpu"), float16=WORDS), "f16": target_spec("webgpu")}
    recipes = {"default": NAMED["q4f16"].computed_in("float32"), "f16": NAMED["q4f16"]}
    plans = {name: make_plan(SMALL, recipes[name], spec, 8192, 512) for name, spec in specs.items()}
    libraries = [LibraryNeeds(name, "f", name, plan) for name, plan in plans.items()]
    main = plans["default"]
    values = json.loads(json.dumps(plan_json(main, {}, libraries)))["savings"]
    saves = {one["option"]: one["saves_bytes"] for one in values}
    less = main.device_memory_bytes - plans["f16"].device_memory_bytes
    assert saves["--libraries without default"] == less > 0
    assert saves["--context 4096"] == (
        main.device_memory_bytes
        - make_plan(SMALL, recipes["default"], specs["default"], 4096, 512).device_memory_bytes
    )
    lines = plan_text(main, "E2B", libraries).splitlines()
    begin = lines.index("Would save memory (--fit chooses)")
    shown = lines[begin + 1 : lines.index("", begin)]
    assert len(shown) == len(values)
    assert all(len(line) <= 110 for line in lines)
