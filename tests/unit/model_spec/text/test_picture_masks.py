"""Which attention a decoder's layers have where a package takes pictures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import tvm
from tvm import tirx

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.operators.base import operator_of
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec

PICTURES = frozenset({Modality.TEXT, Modality.IMAGE})
CAUSAL = ("gemma-4-E2B-it", "gemma-4-E4B-it")
WHOLE = ("gemma-4-12B-it", "gemma-4-26B-A4B-it", "gemma-4-31B-it")
LAYERS, CHUNK = 12, 512
RECIPE, TARGET = RECIPES["q4f16"], target_spec("webgpu")


def config_of(preset: str, modalities: frozenset[Modality]) -> Gemma4Config:
    """A released size, of which the first layers are enough."""
    config = Gemma4Config.from_preset(preset, modalities)
    per_layer = {
        name: getattr(config, name)[:LAYERS]
        for name in ("layer_types", "num_key_value_heads", "head_dim")
    }
    return replace(config, num_hidden_layers=LAYERS, num_kv_shared_layers=0, **per_layer)


def module_of(config: Gemma4Config) -> tvm.IRModule:
    """The exported functions of the decoder alone."""
    options = decoder_options(RECIPE, TARGET, CHUNK)
    return build_module(config, RECIPE, TARGET, options, components=(TEXT,))


def launches(module: tvm.IRModule, function: str) -> Counter[str]:
    """Launches of an exported function by the kind of operator."""
    kinds: Counter[str] = Counter()
    for name in calls_of(module, function):
        operator = operator_of(module[name])
        kinds["-" if operator is None else operator.variant] += 1
    return kinds


def of_attention(module: tvm.IRModule, function: str) -> dict[str, int]:
    kinds = ("prefill_attention", "picture_prefill_attention", "last_visible_rows")
    found = launches(module, function)
    return {kind: found[kind] for kind in kinds if found[kind]}


@pytest.mark.parametrize("preset", WHOLE)
def test_pictures_see_themselves_on_sliding_layers_alone(preset: str) -> None:
    config = config_of(preset, PICTURES)
    assert config.whole_images
    module = module_of(config)
    sliding = config.layer_types.count(AttentionKind.SLIDING)
    full = config.num_hidden_layers - sliding
    assert of_attention(module, abi.PREFILL) == {
        "prefill_attention": full - 1,  # the last one attends for one row
        "picture_prefill_attention": sliding,
        "last_visible_rows": 1,
    }
    assert of_attention(module, abi.DECODE) == {}
    for func in module.functions.values():
        operator = operator_of(func) if isinstance(func, tirx.PrimFunc) else None
        if operator is not None and operator.variant == "picture_prefill_attention":
            assert vars(operator)["window"] == config.sliding_window


@pytest.mark.parametrize("preset", CAUSAL)
def test_pictures_of_the_small_sizes_are_causal(preset: str) -> None:
    config = config_of(preset, PICTURES)
    assert not config.whole_images
    assert set(of_attention(module_of(config), abi.PREFILL)) == {"prefill_attention"}


@pytest.mark.parametrize("preset", WHOLE)
def test_a_package_for_text_has_no_trace_of_pictures(preset: str) -> None:
    config = config_of(preset, TEXT_ONLY)
    assert config.bidirectional_images
    assert not config.whole_images
    module = module_of(config)
    assert set(of_attention(module, abi.PREFILL)) == {"prefill_attention"}
    causal = module_of(replace(config, bidirectional_images=False))
    tvm.ir.assert_structural_equal(module, causal)
