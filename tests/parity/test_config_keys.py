"""Configs as transformers writes them, in full or without defaults, and what it makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from gemma4_compile.errors import ConfigError  # noqa: E402
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config  # noqa: E402
from gemma4_compile.model_spec.config.keys import (  # noqa: E402
    IGNORED_KEYS,
    IGNORED_TOP_KEYS,
    TEXT_DEFAULTS,
)

TYPES = {
    "gemma4": (transformers.Gemma4Config, transformers.Gemma4TextConfig),
    "gemma4_unified": (transformers.Gemma4UnifiedConfig, transformers.Gemma4UnifiedTextConfig),
}
SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    *("num_attention_heads", "sliding_window", "max_position_embeddings", "attention_k_eq_v"),
    *("num_kv_shared_layers", "use_double_wide_mlp", "final_logit_softcapping"),
    *("bos_token_id", "pad_token_id"),
)


def refuse(names: list[str]) -> None:
    pytest.fail(f"unknown: {names}")


def check(ours: Gemma4Config, theirs: Any) -> None:
    for name in SAME:
        assert getattr(ours, name) == getattr(theirs, name), name
    eos = theirs.eos_token_id
    assert list(ours.eos_token_id) == (eos if isinstance(eos, list) else [eos])
    assert [kind.value for kind in ours.layer_types] == theirs.layer_types
    for index in range(theirs.num_hidden_layers):
        layer = theirs.per_layer_config[index]
        assert ours.head_dim[index] == layer.head_dim, index
        assert ours.num_key_value_heads[index] == layer.num_key_value_heads, index
    for kind, rope in (("sliding", ours.sliding_rope), ("full", ours.full_rope)):
        expected = theirs.rope_parameters[f"{kind}_attention"]
        assert rope.rope_type == expected["rope_type"]
        assert rope.rope_theta == expected["rope_theta"]
        assert rope.partial_rotary_factor == expected.get("partial_rotary_factor", 1.0)
    width = getattr(theirs, "hidden_size_per_layer_input", 0)
    assert ours.hidden_size_per_layer_input == width
    assert ours.vocab_size_per_layer_input == (theirs.vocab_size_per_layer_input if width else 0)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sizes": {"hidden_size": 96, "num_hidden_layers": 7, "vocab_size": 262_144, "head_dim": 64},
    "k is v": {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "global_head_dim": 128},
    "no k is v": {"attention_k_eq_v": False, "num_global_key_value_heads": 2},
    "cap": {"final_logit_softcapping": 30.0, "use_double_wide_mlp": True},
    "sharing": {"num_kv_shared_layers": 6},
    "ids": {"eos_token_id": [1, 106], "pad_token_id": 3, "bos_token_id": 4},
}


@pytest.mark.parametrize("form", ["as written", "without defaults", "text alone"])
@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("kind", TYPES)
def test_what_transformers_writes_is_what_it_means(kind: str, changes: str, form: str) -> None:
    whole, text_class = TYPES[kind]
    text = text_class(**CHANGES[changes], dtype="bfloat16")
    written = text.to_dict()
    if form == "without defaults":
        standard = text_class(dtype="bfloat16").to_dict()
        keep = ("model_type", "dtype", "per_layer_config")
        written = {k: v for k, v in written.items() if k in keep or v != standard.get(k)}
    if form != "text alone":
        written = {**whole(text_config=text).to_dict(), "text_config": written}
        written.update(dtype="bfloat16")
    written["dtype"] = "bfloat16"
    check(Gemma4Config.from_dict(written, refuse), text)


@pytest.mark.parametrize("kind", TYPES)
def test_as_little_as_a_config_can_say(kind: str) -> None:
    """No key but those without a default; null where transformers allows it."""
    _, text_class = TYPES[kind]
    nulls = dict.fromkeys(("rope_parameters", "layer_types", "final_logit_softcapping"))
    for values in ({}, nulls):
        text = {"model_type": text_class.model_type, "dtype": "bfloat16", **values}
        check(Gemma4Config.from_dict(text, refuse), text_class(**values))
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    ours = Gemma4Config.from_dict({**text, **ids}, refuse)
    assert (ours.pad_token_id, ours.bos_token_id, ours.eos_token_id) == (0, 2, (1,))


@pytest.mark.parametrize("kind", TYPES)
def test_every_key_of_the_config_classes_is_known(kind: str) -> None:
    whole, text_class = TYPES[kind]
    named = transformers.generation.GenerationConfig._get_default_generation_params()
    for config, ignored in ((text_class, IGNORED_KEYS), (whole, IGNORED_TOP_KEYS)):
        for name in (*named, *(field.name for field in dataclasses.fields(config))):
            values = {"model_type": text_class.model_type, "dtype": "bfloat16"}
            if config is whole:
                if name == "text_config":
                    continue
                values = {"model_type": kind, "dtype": "bfloat16", "text_config": {}}
            standard = config().to_dict().get(name)
            if name in ignored:
                standard = "anything"
            if name == "dtype":
                standard = "bfloat16"
            Gemma4Config.from_dict({**values, name: standard}, refuse)


def test_the_defaults_are_those_of_transformers() -> None:
    for _, text_class in TYPES.values():
        standard = {**text_class().to_dict(), "global_head_dim": 512}
        for name, value in TEXT_DEFAULTS[text_class.model_type].items():
            if name in standard:  # the unified model has no per-layer embeddings
                assert standard[name] == value, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_scaling", {"full_attention": {"rope_theta": 5.0}}),
        ("is_causal", False),
        ("use_bidirectional_attention", "all"),
        ("attention_bias", True),
    ],
)
def test_what_changes_the_model_is_refused(name: str, value: object) -> None:
    text = {"model_type": "gemma4_text", "dtype": "bfloat16", name: value}
    with pytest.raises(ConfigError, match=name):
        Gemma4Config.from_dict(text)
