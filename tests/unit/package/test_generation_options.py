"""Options of generation_config.json that a package does not have are named."""

from typing import Any

import pytest
from transformers import GenerationConfig

from gemma4_compile.package.conversation import sampling_defaults
from gemma4_compile.package.generation_options import (
    LEFT_OUT,
    READ,
    left_out,
    warn_of_left_out,
    warn_of_unsaid_sampling,
)

# Of transformers' options, those that change no reply of one sequence, by their kind.
WITHOUT_EFFECT = {
    "lengths that each client sets": ("max_length", "max_new_tokens", "max_time"),
    "of beams, which are named": ("early_stopping", "length_penalty", "diversity_penalty"),
    "of other models": ("forced_bos_token_id", "decoder_start_token_id", "is_assistant"),
    "of the last token of a length": ("forced_eos_token_id",),
    "of values that are not finite": ("remove_invalid_values",),
    "of the order of steps": ("renormalize_logits", "low_memory", "prefill_chunk_size"),
    "caches": ("use_cache", "cache_implementation", "cache_config", "max_cache_len"),
    "what is given back": (
        *("num_return_sequences", "output_attentions", "output_hidden_states", "output_scores"),
        *("output_logits", "return_dict_in_generate"),
    ),
    "of the tokenizer": ("pad_token_id", "bos_token_id"),
    "drafts, with which replies are the same": (
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "use_mtp"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "speculation_type"),
        *("max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind"),
        *("target_lookbehind", "assistant_ensemble_weight"),
    ),
    "of compilers and servers": (
        "compile_config",
        "disable_compile",
        "continuous_batching_config",
    ),
    "who wrote it": ("transformers_version", "_from_model_config"),
}


def test_every_option_of_transformers_is_read_named_or_without_effect() -> None:
    unread = {name for names in WITHOUT_EFFECT.values() for name in names}
    config: Any = GenerationConfig
    known = vars(config()).keys()
    assert not READ & LEFT_OUT.keys()
    assert not unread & (READ | LEFT_OUT.keys())
    assert known - READ - unread == LEFT_OUT.keys() & known
    assert READ | unread <= known


@pytest.mark.parametrize("name", LEFT_OUT)
def test_an_option_is_named_where_it_changes_replies(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for neutral in (None, *LEFT_OUT[name]):
        assert left_out({"do_sample": True, name: neutral}) == []
    given = {"do_sample": True, name: 0.5}
    assert left_out(given) == [name]
    warn_of_left_out(given)
    assert f"`{name}` is not part of a package" in capsys.readouterr().err


def test_sampling_is_not_named_where_nothing_is_sampled() -> None:
    values = {"min_p": 0.1, "typical_p": 0.9, "num_beams": 4}
    assert left_out({**values, "do_sample": False}) == left_out(values) == ["num_beams"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "`do_sample` is missing"),
        ({"temperature": 0.7}, "samples (temperature 0.7)"),
        ({"do_sample": None, "top_k": 64}, "`do_sample` is missing"),
        ({"do_sample": "true"}, "`do_sample` is 'true', expected true or false"),
        ({"do_sample": True, "temperature": 0.7}, ""),
        ({"do_sample": False, "temperature": 0.7}, ""),
        ({"temperature": 0}, ""),
    ],
)
def test_a_package_that_samples_where_transformers_does_not_says_so(
    given: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_unsaid_sampling(given, sampling_defaults(given))
    found = capsys.readouterr().err
    assert said in found
    assert bool(found) == bool(said)
    config: Any = GenerationConfig
    if said:
        assert config(**given).get_generation_mode() == "greedy_search"


def test_a_checkpoint_without_the_file_is_told_that_it_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn_of_unsaid_sampling({}, sampling_defaults({}), is_there=False)
    found = capsys.readouterr().err
    assert "generation_config.json is missing: transformers takes the most probable" in found
    assert "true` or `false` into a generation_config.json" in found
