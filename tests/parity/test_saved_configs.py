"""Configs that transformers saved, whole: no key of theirs is called unknown, or refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gemma4_compile.model_spec.config.drafter import read_drafter  # noqa: E402
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config  # noqa: E402
from gemma4_compile.model_spec.modality import Modality  # noqa: E402

PRESETS = sorted((Path(__file__).parents[2] / "model_spec" / "presets").glob("*.json"))
SECTIONS = ("text_config", "vision_config", "audio_config")
DTYPES = ("float32", "bfloat16", "float16")
DRAFTERS = ("gemma4_assistant", "gemma4_unified_assistant")
# What transformers wants of a drafter's decoder.
DRAFTING = {"num_hidden_layers": 4, "num_kv_shared_layers": 4}
NO_LAYER_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def refuse(names: list[str]) -> None:
    pytest.fail(f"unknown: {names}")


def sections(config: Any) -> Iterator[tuple[str, Any]]:
    """The sections that a config has."""
    for name in SECTIONS:
        if getattr(config, name, None) is not None:
            yield name, getattr(config, name)


def saved(config: Any, folder: Path) -> dict[str, Any]:
    config.save_pretrained(folder)
    values: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return values


def read(values: dict[str, Any]) -> Gemma4Config:
    """With every modality that the config has; of Gemma 3n text, the part that is compiled."""
    kinds = [Modality.TEXT]
    if values["model_type"] != "gemma3n":
        kinds += [Modality.IMAGE] * bool(values.get("vision_config"))
        kinds += [Modality.AUDIO] * bool(values.get("audio_config"))
    return Gemma4Config.from_dict(values, refuse, kinds)


def preset(path: Path) -> Any:
    """The config class of transformers, with a released model's values."""
    values = json.loads(path.read_text("utf-8"))
    return transformers.AutoConfig.for_model(values.pop("model_type"), **values)


def drafter(kind: str) -> Any:
    text = DRAFTING | (NO_LAYER_INPUTS if kind == "gemma4_assistant" else {})
    return transformers.AutoConfig.for_model(kind, text_config=text)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_saved_config_is_known_to_its_last_key(path: Path, dtype: str, tmp_path: Path) -> None:
    config = preset(path)
    config.dtype = getattr(torch, dtype)
    for _, section in sections(config):
        section.dtype = getattr(torch, dtype)
    values = saved(config, tmp_path)
    assert values["vision_config"]["dtype"] == dtype
    assert read(values).dtype == dtype


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_saved_drafter_is_known_to_its_last_key(kind: str, tmp_path: Path) -> None:
    config = drafter(kind)
    config.dtype = config.text_config.dtype = torch.bfloat16
    assert read_drafter(saved(config, tmp_path), refuse).dtype == "bfloat16"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_field_of_a_section_may_be_written(path: Path, tmp_path: Path) -> None:
    """Also those that have a default, and are left out therefore."""
    config = preset(path)
    config.dtype = torch.bfloat16
    values = saved(config, tmp_path)
    named = transformers.generation.GenerationConfig._get_default_generation_params()
    for name, section in sections(config):
        written = section.to_dict()
        for field in (*named, *(each.name for each in dataclasses.fields(section))):
            given = dict(values[name])
            given.setdefault(field, written.get(field))
            read({**values, name: given})


@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_field_of_a_drafter_may_be_written(kind: str, tmp_path: Path) -> None:
    config = drafter(kind)
    config.dtype = torch.bfloat16
    values = saved(config, tmp_path)
    for given, theirs in ((values, config), (values["text_config"], config.text_config)):
        written = theirs.to_dict()
        for field in dataclasses.fields(theirs):
            changed = {**given, field.name: given.get(field.name, written.get(field.name))}
            read_drafter(changed if given is values else {**values, "text_config": changed}, refuse)


def test_a_model_that_was_saved_whole_is_known(tmp_path: Path) -> None:
    """Its sections have a dtype each, and a generation config lies beside it."""
    text = {"num_hidden_layers": 6, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}
    text |= {"global_head_dim": 8, "vocab_size": 64, "vocab_size_per_layer_input": 64}
    text |= {"hidden_size_per_layer_input": 4, "num_key_value_heads": 4, "pad_token_id": 0}
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = ("boi", "eoi", "image", "video", "audio", "boa")
    ids = {f"{name}_token_id": 40 + index for index, name in enumerate(tokens)}
    config = transformers.Gemma4Config(
        text_config=text,
        vision_config={**small, "intermediate_size": 16, "head_dim": 8, "num_key_value_heads": 2},
        audio_config={**small, "output_proj_dims": 16},
        eoa_token_index=50,
        **ids,
    )
    with torch.device("meta"):
        model = transformers.Gemma4ForConditionalGeneration(config).to(torch.bfloat16)
    model.to_empty(device="cpu").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert read(values).dtype == "bfloat16"
