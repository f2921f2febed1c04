"""Which modules of a compressed-tensors config are rounded, and by which of their scales."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.quantised.compressed_scheme import read_config
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import INPUT_STEP, OUTPUT_STEP
from tests import phone_checkpoints

STATIC = {"num_bits": 8, "strategy": "tensor"}
UP = "layers.0.mlp.up_proj"
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compressed")
    phone_checkpoints.write_compressed(path)
    return path


def changed(stored: Path, path: Path, removed: str = "", **quantization: object) -> Path:
    """The checkpoint with another `quantization_config`, perhaps without a tensor."""
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"].update(quantization)
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(stored / FILE)
    tensors.pop(removed, None)
    save_file(tensors, path / FILE)
    return path


def groups_of(stored: Path) -> dict[str, Any]:
    config = json.loads((stored / "config.json").read_text())
    groups: dict[str, Any] = config["quantization_config"]["config_groups"]
    return groups


def steps(path: Path) -> dict[str, list[float]]:
    """Input's and output's step of every matrix of the text decoder, 0 where there is none."""
    checkpoint = Checkpoint.open(path)
    matched = match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config))
    read = row_reader(matched)
    modules = [name.removesuffix(f".{INPUT_STEP}") for name in matched if name.endswith(INPUT_STEP)]
    return {
        module: [float(read(f"{module}.{end}", 0, 1)[0]) for end in (INPUT_STEP, OUTPUT_STEP)]
        for module in modules
    }


@pytest.mark.parametrize(("key", "end"), [("input_activations", 0), ("output_activations", 1)])
def test_an_end_that_a_group_does_not_round_has_no_step(
    key: str, end: int, stored: Path, tmp_path: Path
) -> None:
    groups = groups_of(stored)
    groups["group_4"][key] = None
    found, before = steps(changed(stored, tmp_path, config_groups=groups)), steps(stored)
    assert found.keys() == before.keys()
    unrounded = {module for module in found if phone_checkpoints.bits_of(module) == 4}
    assert {UP, "layers.4.self_attn.o_proj"} <= unrounded < found.keys()
    for module, values in found.items():
        expected = np.array(before[module])
        expected[end] *= module not in unrounded
        assert values == expected.tolist(), module


def test_a_scale_of_the_cache_is_no_step(stored: Path, tmp_path: Path) -> None:
    """`k_proj.output_scale`, as older files have it of keys, of a group without outputs."""
    groups = {
        name: {**group, "output_activations": None} for name, group in groups_of(stored).items()
    }
    found = steps(changed(stored, tmp_path, config_groups=groups))
    assert {values[1] for values in found.values()} == {0.0}
    assert 0.0 not in {values[0] for values in found.values()}


@pytest.mark.parametrize("front", ["model.", "model.language_model."])
def test_a_module_is_named_as_any_of_its_models_names_it(front: str) -> None:
    groups = {
        "all": {"targets": ["Linear"], "input_activations": STATIC},
        "one": {"targets": [f"{front}{UP}"], "output_activations": STATIC},
    }
    config = read_config({"config_groups": groups, "ignore": [f"re:{front}layers.1.self_attn"]})
    assert config.groups is not None
    for module in (UP, f"model.{UP}", f"model.language_model.{UP}"):
        found = [config.groups.of(module.replace("up", name)) for name in ("up", "gate")]
        ends = [None if group is None else group.ends for group in found]
        assert ends == [("output_scale",), ("input_scale",)]
    assert config.groups.of("model.layers.1.self_attn.q_proj") is None
    assert config.groups.of("model.embed_tokens") is None, "no `Linear`"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("Linear", "config_groups.all.targets`: expected a list"),
        ([3], "config_groups.all.targets`: expected a list"),
        ([r"re:(a)\1"], "may take long to match: it refers to a group"),
        (["re:[a"], "is no regular expression"),
        (["Linear"] * 70_000, "expected up to 65536 names, found 70000"),
    ],
)
def test_targets_that_are_not_read(targets: object, message: str) -> None:
    group = {"targets": targets, "input_activations": STATIC}
    with pytest.raises(ConfigError, match=message) as caught:
        read_config({"config_groups": {"all": group}})
    assert caught.value.hint


def test_names_that_are_ignored_are_not_gone_through_for_each_module() -> None:
    """As many names as are read, of modules of a large checkpoint."""
    groups = {"all": {"targets": ["Linear"], "input_activations": STATIC}}
    ignored = [f"model.layers.{i}.mlp.up_proj" for i in range(1 << 16)]
    found = read_config({"config_groups": groups, "ignore": ignored}).groups
    assert found is not None
    begin = time.process_time()
    for i in range(500):
        assert found.of(f"model.layers.{i}.mlp.up_proj") is None
        assert found.of(f"model.layers.{i}.mlp.gate_proj") is not None
    assert time.process_time() - begin < 2, "32 million comparisons take longer"


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("re:.*up_proj", "Linear", f"model.{UP}"), f"model.{UP}"),
        (("re:.*up_proj", "Linear", "re:.*mlp.*"), "re:.*mlp.*"),
        (("Linear", "Module", "embed"), "Linear"),
        (("Embedding", "re:.*down_proj"), None),
        ((f"model.language_model.{UP}", f"model.{UP}"), f"model.language_model.{UP}"),
    ],
)
def test_a_name_goes_before_patterns_and_those_before_classes(
    targets: tuple[str, ...], expected: str | None
) -> None:
    groups = {
        f"group{i}": {"targets": [target], "input_activations": STATIC}
        for i, target in enumerate(targets)
    }
    found = read_config({"config_groups": groups}).groups
    assert found is not None
    group = found.of(f"model.{UP}")
    assert (None if group is None else group.targets) == (expected and (expected,))


@pytest.mark.parametrize("ignored", ["model.layers.0.mlp.up_proj", r"re:.*\.up_proj$"])
def test_a_packed_module_without_a_group_is_refused(
    ignored: str, stored: Path, tmp_path: Path
) -> None:
    path = changed(stored, tmp_path, ignore=[ignored, "model.per_layer_model_projection"])
    with pytest.raises(CheckpointError, match=rf"`model\.{UP}\.weight_packed` .* no group for it"):
        steps(path)


def test_a_packed_module_that_no_group_names_is_refused(stored: Path, tmp_path: Path) -> None:
    groups = groups_of(stored)
    groups["group_4"]["targets"].remove(f"model.{UP}")
    with pytest.raises(CheckpointError, match=rf"`model\.{UP}\.weight_packed` .* no group for it"):
        steps(changed(stored, tmp_path, config_groups=groups))


@pytest.mark.parametrize("tower", ["vision_tower", "audio_tower"])
def test_a_packed_module_of_a_tower_needs_no_group(
    tower: str, stored: Path, tmp_path: Path
) -> None:
    """What it rounds does not matter to the text, and towers are refused."""
    path = changed(
        stored, tmp_path, ignore=[rf"re:.*{tower}.*", "model.per_layer_model_projection"]
    )
    tensors = load_file(path / FILE)
    for end in ("weight_packed", "weight_shape", "weight_scale"):
        own = tensors[f"model.layers.0.self_attn.q_proj.{end}"]
        tensors[f"model.{tower}.layers.0.self_attn.q_proj.{end}"] = own
    save_file(tensors, path / FILE)
    assert steps(path) == steps(stored)


@pytest.mark.parametrize("end", ["input_scale", "output_scale"])
def test_a_scale_that_is_asked_for_and_not_there_is_named(
    end: str, stored: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"rounded by `model\.{UP}\.{end}`"):
        steps(changed(stored, tmp_path, removed=f"model.{UP}.{end}"))


def test_a_layer_that_is_not_read_needs_no_scale(stored: Path, tmp_path: Path) -> None:
    """Keys of a layer that reads another layer's, which the released files have."""
    groups, tensors = groups_of(stored), load_file(stored / FILE)
    last = f"model.layers.{phone_checkpoints.TEXT['num_hidden_layers'] - 1}.self_attn.k_proj"
    groups["group_4"]["targets"].append(last)
    path = changed(stored, tmp_path, config_groups=groups)
    for end in ("weight_packed", "weight_shape", "weight_scale"):
        assert f"{last}.{end}" not in tensors
        tensors[f"{last}.{end}"] = tensors[f"model.layers.0.self_attn.k_proj.{end}"]
    save_file(tensors, path / FILE)
    assert steps(path) == steps(stored)
