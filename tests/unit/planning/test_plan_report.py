"""The plan as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.planning.plan_report import plan_json, plan_text, size
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.devices import typical_devices
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import FEATURE

PRESET = "gemma-4-26B-A4B-it"


def plan(target: str = "webgpu") -> BuildPlan:
    config = Gemma4Config.from_preset(PRESET)
    return make_plan(config, "q4f16", target_spec(target), 8192, 512, (4096, 32_768))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0.0 MiB"), (1 << 20, "1.0 MiB"), ((1 << 30) - 1, "1024.0 MiB"), (3 << 29, "1.50 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_text_names_every_number_once_and_in_columns() -> None:
    lines = plan_text(plan(), PRESET).splitlines()
    assert lines[0].startswith(f"{PRESET} in q4f16 for webgpu")
    assert sum(line.split() == ["experts", "22,837,985,280"] for line in lines) == 1
    contexts = [line.split()[0] for line in lines if line.startswith("  ") and "GiB" in line]
    assert {"4,096", "8,192", "32,768"} <= set(contexts)
    assert all(device.name in "\n".join(lines) for device in typical_devices("webgpu"))
    assert all(line == line.rstrip() and len(line) <= 110 for line in lines)


def test_text_ends_with_the_checkpoint_that_was_trained_for_4_bits() -> None:
    twin = f"google/{PRESET}-qat-q4_0-unquantized"
    assert plan_text(plan(), f"google/{PRESET}").splitlines()[-1] == f"  {twin}"
    assert twin not in plan_text(plan(), "folder/model")
    trained = plan_text(plan(), twin)
    assert "Trained for" not in trained
    assert trained.splitlines()[-1].endswith("--quant q4f16s is smaller")
    assert "q4f16s" in RECIPES
    config = Gemma4Config.from_preset(PRESET)
    exact = make_plan(config, "q8f16", target_spec("webgpu"), 8192, 512, (4096,))
    assert "Trained for" not in plan_text(exact, PRESET)


def test_text_shows_how_large_subgroups_must_be() -> None:
    config = Gemma4Config.from_preset(PRESET)
    spec = target_spec("webgpu", "subgroups-16")
    lines = plan_text(make_plan(config, "q4f16", spec, 8192, 512, (4096,)), PRESET).splitlines()
    assert any(line.split() == ["smallest", "subgroup", "16", "threads"] for line in lines)
    (laptop,) = (line for line in lines if "integrated GPU" in line)
    assert "subgroups of 16 threads: they may have 8" in laptop
    assert not any("smallest subgroup" in line for line in plan_text(plan(), PRESET).splitlines())


def test_packages_that_see_say_how_large_pictures_may_be() -> None:
    sees = frozenset({Modality.TEXT, Modality.IMAGE})
    config = Gemma4Config.from_preset(PRESET, sees)
    spec = target_spec("webgpu")
    found = make_plan(config, "q4f16", spec, 8192, 1120, image_tokens=1120)
    assert plan_text(found, PRESET).splitlines()[1] == "pictures of up to 1120 tokens"
    assert plan_json(found, {})["image_tokens"] == 1120
    assert "pictures" not in plan_text(plan(), PRESET)
    assert plan_json(plan(), {})["image_tokens"] is None


@pytest.mark.parametrize(
    ("quant", "limits", "found"),
    [("q4f16", "default", "f16"), ("q4f32", "default", "f32"), ("q4f16", "h200", "int8")],
)
def test_text_names_the_type_that_matmuls_multiply(quant: str, limits: str, found: str) -> None:
    config = Gemma4Config.from_preset(PRESET)
    text = plan_text(make_plan(config, quant, target_spec("webgpu", limits), 8192, 512), PRESET)
    assert f", {found} activations, " in text.splitlines()[0]


def test_an_experimental_feature_is_named_and_no_typical_device_has_it() -> None:
    spec = target_spec("webgpu", "h200-matrices")
    found = make_plan(Gemma4Config.from_preset(PRESET), "q4f16", spec, 8192, 512)
    needed = ["shader-f16", "subgroups", FEATURE]
    assert found.provenance()["features"] == needed
    values = plan_json(found, {})
    assert values["requirements"]["features"] == needed
    assert all(f"no {FEATURE}" in device["lacks"] for device in values["devices"])
    assert FEATURE in plan_text(found, PRESET)


def test_cpu_has_no_devices() -> None:
    text = plan_text(plan("cpu"), PRESET)
    assert "Runs on" not in text
    assert plan_json(plan("cpu"), {})["devices"] == []


@pytest.mark.parametrize("target", ["cuda", "webgpu"])
def test_what_another_sequence_takes_is_its_keys_and_values(target: str) -> None:
    """Where programs hold several; a page has one."""
    found = plan(target)
    lines = [line for line in plan_text(found, PRESET).splitlines() if "further sequence" in line]
    expected = [f"each further sequence (--slots) {size(found.kv_bytes)}"]
    assert [" ".join(line.split()) for line in lines] == (expected if target == "cuda" else [])


def test_json_holds_plain_values_that_agree_with_the_plan() -> None:
    found = plan()
    values = json.loads(json.dumps(plan_json(found, {"kind": "preset", "model": PRESET})))
    assert values["source"] == {"kind": "preset", "model": PRESET}
    assert values["parameters"]["all"] == 25_233_141_790
    assert values["recipes"]["q4f16"]["weights_bytes"] == found.recipe.weights_bytes
    assert [kv["context_length"] for kv in values["kv"]] == [4096, 8192, 32_768]
    memory = values["device_memory"]
    parts = (memory["weights_bytes"], memory["kv_bytes"], memory["activation_bytes"])
    assert memory["total_bytes"] == sum(parts) == values["requirements"]["memory_bytes"]
    assert values["requirements"]["features"] == ["shader-f16"]
    assert {device["name"] for device in values["devices"] if not device["lacks"]} >= {
        "discrete GPU, 24 GB"
    }


def test_a_recipe_that_is_not_possible_is_shown_as_such() -> None:
    config = replace(Gemma4Config.from_preset(PRESET), moe_intermediate_size=720)
    odd = make_plan(config, "f16", target_spec("webgpu"), 8192, 512)
    lines = plan_text(odd, PRESET).splitlines()
    four = [line.split() for line in lines if "q4f16" in line]
    groups = ("q4f16", "q4f16s", "q4f16m", "q4f16l")
    assert four == [[name, "not", "possible"] for name in groups]
    assert set(plan_json(odd, {})["recipes"]["q4f16"]) == {"problem"}


def test_nothing_runs_what_cannot_be_built() -> None:
    config = Gemma4Config.from_preset(PRESET)
    odd = replace(config, head_dim=(100,) * config.num_hidden_layers)
    found = make_plan(odd, "q4f16", target_spec("webgpu"), 8192, 512)
    assert found.problem is not None
    assert found.problem.startswith("head_dim 100: target `webgpu` has attention kernels for")
    values = plan_json(found, {})
    assert values["problem"] == found.problem
    assert all(found.problem in device["lacks"] for device in values["devices"])
    assert plan_text(found, PRESET).splitlines()[-1] == f"  nothing  {found.problem}"
    assert plan().problem is None
