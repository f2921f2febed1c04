"""Gemma4Config: everything else is refused by name."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.variants import NO_TOKEN, check_pad
from tests.unit.model_spec.configs import (
    MOE,
    F,
    S,
    hub_config,
    saved_config,
    text_config,
    without,
)


def with_key(place: str, name: str) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(hub_config())
    text = values["text_config"]
    where = {"top": values, "text": text, "rope": text["rope_parameters"][F]}
    if place == "layer":
        values = copy.deepcopy(saved_config())
        where["layer"] = values["per_layer_config"]["2"]
    where[place][name] = 1
    return values


@pytest.mark.parametrize(
    ("place", "path"),
    [("rope", "full_attention.new_key"), ("layer", "per_layer_config.2.new_key")],
)
def test_unknown_key_of_the_architecture_is_refused_with_its_path(place: str, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        Gemma4Config.from_dict(with_key(place, "new_key"))


@pytest.mark.parametrize(("place", "path"), [("top", ""), ("text", "text_config.")])
def test_unknown_key_is_reported_and_left_out(place: str, path: str) -> None:
    told: list[list[str]] = []
    found = Gemma4Config.from_dict(with_key(place, "new_key"), told.append)
    assert told == [[f"{path}new_key"]]
    assert found == Gemma4Config.from_dict(hub_config(), told.append)
    assert len(told) == 1


HARMLESS = (
    *("unsloth_version", "_attn_implementation_autoset", "torchscript", "is_decoder"),
    *("cache_implementation", "model_max_length", "max_length", "temperature"),
)


@pytest.mark.parametrize("place", ["top", "text"])
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_keys_are_not_worth_a_word(name: str, place: str) -> None:
    Gemma4Config.from_dict(with_key(place, name), lambda names: pytest.fail(str(names)))


def test_a_missing_key_has_the_default_of_transformers() -> None:
    """All of them at once; `tests/parity/test_config_keys.py` holds each to transformers."""
    found = Gemma4Config.from_dict({"model_type": "gemma4_text", "dtype": "bfloat16"})
    assert (found.num_hidden_layers, found.hidden_size, found.sliding_window) == (30, 2304, 512)
    assert found.layer_types[:6] == (AttentionKind.SLIDING,) * 5 + (AttentionKind.FULL,)
    assert found.head_dim[4:6] == (256, 512)
    unified = Gemma4Config.from_dict({"model_type": "gemma4_unified_text", "dtype": "bfloat16"})
    assert (unified.hidden_size_per_layer_input, unified.sliding_window) == (0, 1024)


@pytest.mark.parametrize("name", ["pad_token_id", "bos_token_id", "eos_token_id"])
def test_token_ids_may_be_null(name: str) -> None:
    values = copy.deepcopy(hub_config())
    values.pop(name, None)
    values["text_config"][name] = None
    default = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": (1,)}[name]
    assert getattr(Gemma4Config.from_dict(values), name) == default


@pytest.mark.parametrize("given", [{}, {"dtype": None}, {"torch_dtype": None}])
def test_the_dtype_may_be_missing(given: dict[str, Any]) -> None:
    values = {**without(hub_config(), "dtype"), **given}
    values["text_config"] = {**values["text_config"], "dtype": "float32"}  # not read, as there
    assert Gemma4Config.from_dict(values).dtype == "bfloat16"


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="torch_dtype"):
        Gemma4Config.from_dict({**without(text_config(), "dtype"), "torch_dtype": "int8"})


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"model_type": "gemma4_unified"}, "text_config"),
        ({"model_type": "gemma4_assistant"}, "drafter"),
        ({"model_type": "gemma4_unified_assistant"}, "drafter"),
        ({"model_type": "llama"}, "llama"),
        ({"model_type": ["gemma4"]}, "model_type"),
        ({}, "model_type"),
        (hub_config(enable_moe_block=True), "num_experts"),
        (hub_config(**{**MOE, "hidden_size_per_layer_input": 32}), "enable_moe_block"),
        ({**hub_config(), "tie_word_embeddings": "false"}, "tie_word_embeddings"),
        (hub_config(attention_bias=True), "attention_bias"),
        (hub_config(hidden_activation="silu"), "hidden_activation"),
        (hub_config(use_bidirectional_attention="all"), "use_bidirectional_attention"),
        (hub_config(quantization_config={"bits": 4}), "quantization_config"),
        ({**hub_config(), "text_config": None}, "text_config"),
    ],
)
def test_unsupported_variant_is_named(values: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Gemma4Config.from_dict(values)


INTEGERS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "global_head_dim",
    "num_global_key_value_heads",
    "sliding_window",
    "max_position_embeddings",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 10**12, 64.0, "64", True, math.nan, [1.5], {}])
def test_impossible_integer_is_refused_by_name(name: str, value: object) -> None:
    if name.endswith("token_id") and type(value) is int:
        found = getattr(Gemma4Config.from_dict(hub_config(**{name: value})), name)
        assert found == ((value,) if name == "eos_token_id" else NO_TOKEN)
        return
    with pytest.raises(ConfigError, match=name):
        Gemma4Config.from_dict(hub_config(**{name: value}))


@pytest.mark.parametrize("name", ["num_experts", "top_k_experts", "moe_intermediate_size"])
@pytest.mark.parametrize("value", [-1, 0, 10**12, 2.0, "2", True, None, []])
def test_impossible_number_of_experts_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        Gemma4Config.from_dict(hub_config(**{**MOE, name: value}))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1e-6", True, None, 1e30])
def test_impossible_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="rms_norm_eps"):
        Gemma4Config.from_dict(hub_config(rms_norm_eps=value))
    if value is not None:
        with pytest.raises(ConfigError, match="final_logit_softcapping"):
            Gemma4Config.from_dict(hub_config(final_logit_softcapping=value))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layer_types": [S, S, F]}, "layer_types"),
        ({"layer_types": "SSFSSF"}, "layer_types"),
        ({"layer_types": [S, S, F, S, "chunked_attention", F]}, r"layer_types\[4\]"),
        ({"layer_types": [S, S, S, S, S, F]}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 33}, "head_dim"),
        ({**MOE, "top_k_experts": 9}, "top_k_experts"),
        ({**MOE, "enable_moe_block": 1}, "enable_moe_block"),
        ({"vocab_size": 260}, "vocab_size = 260 or more, found 256 rows"),
        (
            {"vocab_size_per_layer_input": 128},
            "= 256 or more, found 128 rows of `embed_tokens_per_layer`",
        ),
        ({"use_double_wide_mlp": 1}, "use_double_wide_mlp"),
        ({"eos_token_id": [1, 2**64]}, "eos_token_id"),
        ({"eos_token_id": [1, None]}, "eos_token_id"),
        ({"eos_token_id": [1] * 257}, "eos_token_id"),
        ({"rope_parameters": {S: {"rope_type": "default", "rope_theta": 1e4}}}, "full_attention"),
        ({"rope_parameters": {**text_config()["rope_parameters"], "other": {}}}, "other"),
    ],
)
def test_values_that_do_not_fit_together(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Gemma4Config.from_dict(hub_config(**changes))


@pytest.mark.parametrize("key", ["6", "-1", "x", "²", "02"])
def test_layer_numbers_of_overrides(key: str) -> None:
    values = saved_config()
    values["per_layer_config"] = {**values["per_layer_config"], key: {"head_dim": 64}}
    with pytest.raises(ConfigError, match="per_layer_config"):
        Gemma4Config.from_dict(values)


def test_both_forms_at_once_are_refused_where_they_differ() -> None:
    """As others add the keys that their programs read to what transformers saved."""
    alone = Gemma4Config.from_dict(saved_config())
    both = {**saved_config(), "global_head_dim": 64, "num_global_key_value_heads": 1}
    assert Gemma4Config.from_dict(both) == alone
    with pytest.raises(ConfigError, match=r"global_head_dim` differ: .* 64 by the first, 48 by"):
        Gemma4Config.from_dict({**both, "global_head_dim": 48})
    heads = {**both, "num_global_key_value_heads": 2}
    assert Gemma4Config.from_dict({**heads, "attention_k_eq_v": False}) == Gemma4Config.from_dict(
        {**both, "attention_k_eq_v": False}
    )
    with pytest.raises(ConfigError, match="num_global_key_value_heads` differ"):
        Gemma4Config.from_dict({**heads, "attention_k_eq_v": True})


def test_a_layer_must_fit_the_layer_whose_keys_it_reads() -> None:
    values = saved_config()
    values["per_layer_config"] = {"2": {"head_dim": 64, "num_key_value_heads": 1}}
    with pytest.raises(ConfigError, match="layer 5 shares the keys of layer 2"):
        Gemma4Config.from_dict(values)


@pytest.mark.parametrize(("ple", "refused"), [(32, True), (0, False)])
def test_media_need_the_row_of_the_pad_token_where_layers_read_it(ple: int, refused: bool) -> None:
    check = partial(check_pad, is_read=ple > 0)
    check(0)
    with pytest.raises(ConfigError, match="pad_token_id") if refused else nullcontext():
        check(NO_TOKEN)
