"""An encoder as a component: its tensors, its parameters and its one function."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.spellings import usual_name
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.component import EMBEDDING
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec

CHUNK = 64


@pytest.fixture(scope="module")
def config() -> Gemma4Config:
    text = {"model_type": "embedding_gemma2_text"}
    return Gemma4Config.from_dict({"model_type": "embedding_gemma2", "text_config": text})


def test_a_decoder_has_none_and_an_encoder_no_other(config: Gemma4Config) -> None:
    assert EMBEDDING.parameters(Gemma4Config.from_preset("gemma-4-E2B-it")) == ()
    assert model_parameters(config, ALL_COMPONENTS) == EMBEDDING.parameters(config)


def test_tensors_of_the_released_sizes(config: Gemma4Config) -> None:
    sources = {s.name: s.shape for p in EMBEDDING.parameters(config) for s in p.sources}
    assert sources["ple.per_layer_model_projection.weight"] == (24 * 512, 512)
    assert sources["ple.per_layer_projection_norm.weight"] == (512,)
    assert sources["layers.5.self_attn.k_proj.weight"] == (512, 512)
    assert sources["layers.4.self_attn.q_proj.weight"] == (4 * 256, 512)
    assert sources["layers.0.ple_block.per_layer_input_gate.weight"] == (512, 512)
    assert sources["embedding_projection.weight"] == (768, 512)
    assert (
        sum(prod(shape) for shape in sources.values()) == 271_002_648
    )  # as transformers' model has


@pytest.mark.parametrize("front", ["language_model.", "model.language_model.", "model.", ""])
def test_every_spelling_of_a_tensor_is_read(front: str) -> None:
    for name in ("ple.per_layer_projection_norm.weight", "embedding_projection.weight"):
        assert usual_name(f"{front}{name}", "model.language_model.").endswith(f".{name}")
    towers = ("embed_vision.embedding_projection.weight", "embed_audio.embedding_projection.weight")
    for name in towers:
        assert usual_name(name, "model.language_model.") == f"model.{name}"


def test_memory_is_planned_for_the_longest_call(config: Gemma4Config) -> None:
    recipe, spec = RECIPES["q4f16"], target_spec("webgpu")
    module = build_module(config, recipe, spec, decoder_options(recipe, spec, CHUNK))
    bounds = module[abi.EMBED_TEXTS].attrs[VAR_BOUNDS_ATTR]
    assert {name: int(most) for name, most in bounds.items()} == dict.fromkeys(
        ("n", "texts"), CHUNK + 2
    )
    # A layer: its 5 matmuls and those of the per-layer input, what prepares and attends, and the
    # norms between; around them table, angles and per-layer inputs, and the three after.
    assert len(calls_of(module, abi.EMBED_TEXTS)) == 24 * 11 + 8
    # The stock client's call packs a group of texts, and puts all vectors where it reads them.
    launched = {name: len(calls_of(module, name)) for name in ("prefill_group", abi.EMBED_PADDED)}
    assert launched == {"prefill_group": 1, abi.EMBED_PADDED: 1}


@pytest.mark.parametrize(
    "changed", [{"eos_token_id": ()}, {"eos_token_id": (-1,)}, {"bos_token_id": -1}]
)
def test_a_page_s_texts_need_the_tokens_around_them(
    config: Gemma4Config, changed: dict[str, Any]
) -> None:
    recipe, spec = RECIPES["q4f16"], target_spec("webgpu")
    options = decoder_options(recipe, spec, CHUNK)
    with pytest.raises(ConfigError, match=f"`{next(iter(changed))}`.*found none"):
        build_module(replace(config, **changed), recipe, spec, options)
