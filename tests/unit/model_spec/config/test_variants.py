"""Kinds of checkpoints: those that are refused, and which of two places a value is read from."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.keys import TOP_DEFAULTS
from gemma4_compile.model_spec.config.variants import (
    ENCODERS,
    GEMMA3N_TEXT,
    TEXT_TYPES,
    first_given,
    refuse_variants,
    stored_dtype,
    ties_head,
    unsupported_type,
)


def fields(values: dict[str, object], path: str = "") -> ConfigFields:
    return ConfigFields(values, path)


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("gemma4_assistant", "a drafter, which drafts tokens for another model"),
        ("gemma4_unified_assistant", "a drafter"),
        ("llama", "'llama' is not a Gemma 4 text model"),
        (None, "None is not"),
        (["gemma4"], "is not a Gemma 4"),
    ],
)
def test_another_model_type_is_named(model_type: object, words: str) -> None:
    error = unsupported_type(model_type)
    assert words in str(error)
    takes_none = (*ENCODERS, GEMMA3N_TEXT)
    takes_drafts = [name for name, text in TEXT_TYPES.items() if text not in takes_none]
    named = takes_drafts if "drafter" in words else TEXT_TYPES
    assert all(f"`{name}`" in str(error.hint) for name in named)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", {"bits": 4}),
        ("is_causal", False),
    ],
)
def test_what_means_another_architecture_is_refused_in_both_places(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`"):
        refuse_variants(fields({key: value}), fields({}, "text_config"))
    with pytest.raises(ConfigError, match=rf"`text_config\.{key}`"):
        refuse_variants(fields({}), fields({key: value}, "text_config"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", "all"),
        ("attention_bias", True),
        ("hidden_activation", "silu"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"`text_config\.{key}`"):
        refuse_variants(fields({}), fields({key: value}, "text_config"))


@pytest.mark.parametrize("attention", [None, "vision"])
def test_the_released_values_and_absent_ones_are_taken(attention: str | None) -> None:
    refuse_variants(fields({}), fields({}))
    text: dict[str, object] = {
        "quantization_config": None,
        "is_causal": True,
        "use_bidirectional_attention": attention,
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    refuse_variants(fields({"quantization_config": {}}), fields(text))
    for name in ("gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"):
        refuse_variants(fields({}), fields({**text, "hidden_activation": name}))


@pytest.mark.parametrize(
    ("top", "text", "expected"),
    [
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, True),
        ({}, {"tie_word_embeddings": False}, True),
        ({"tie_word_embeddings": False}, {}, False),
    ],
)
def test_the_top_level_says_whether_the_head_is_tied(
    top: dict[str, object], text: dict[str, object], expected: bool
) -> None:
    place = fields(text, "text_config")
    assert ties_head(ConfigFields(top, "", TOP_DEFAULTS), place) is expected
    assert place.unknown({}) == [], "known, and not read by transformers"


@pytest.mark.parametrize("value", [None, 0, "false"])
def test_whether_the_head_is_tied_is_true_or_false(value: object) -> None:
    """As in transformers, which refuses every other value."""
    with pytest.raises(ConfigError, match="`tie_word_embeddings`: expected true or false"):
        ties_head(fields({"tie_word_embeddings": value}), fields({}))


def test_the_first_place_with_a_value_counts() -> None:
    top, text = ConfigFields({"x": None}, ""), ConfigFields({"x": 2}, "text_config", {"x": 1})
    assert first_given("x", top, text) is text
    second = fields({"x": 3})
    assert first_given("x", ConfigFields({}, "", {"x": 1}), second) is second
    assert first_given("x", ConfigFields({"x": 0}, ""), text).get("x") == 0
    assert first_given("x", top, ConfigFields({}, "", {"x": 1})).require("x") == 1


@pytest.mark.parametrize(
    ("top", "text", "expected"),
    [
        ({"dtype": "float16"}, {"dtype": "bfloat16"}, "float16"),
        ({"torch_dtype": "float16"}, {"dtype": "bfloat16"}, "float16"),
        ({"dtype": None}, {"torch_dtype": "float32"}, "bfloat16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, {}, "bfloat16"),
        ({"dtype": "torch.float16"}, {}, "float16"),
        ({"dtype": "auto", "torch_dtype": "half"}, {}, "float16"),
        ({"dtype": "auto"}, {}, "bfloat16"),
        ({"dtype": {"": "float16", "vision_config": "float32"}}, {}, "float16"),
        ({"dtype": {"text_config": "float16"}}, {}, "float32"),
        ({"torch_dtype": "float64"}, {}, "float32"),
    ],
)
def test_the_dtype_is_that_of_the_top_level(
    top: dict[str, object], text: dict[str, object], expected: str
) -> None:
    place = fields(text, "text_config")
    assert stored_dtype(fields(top), place) == expected
    assert place.unknown({}) == [], "a stale one is known, and superseded"


def test_a_dtype_must_be_one_of_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match=r"`torch_dtype`.*float8"):
        stored_dtype(fields({"torch_dtype": "float8"}), fields({}, "text_config"))
