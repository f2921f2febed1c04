"""Keys of `config.json`: transformers' defaults, what changes nothing here, and what is refused.

The defaults are those of transformers 5.24, whose configs are written without the keys that have
them; `tests/parity/test_config_keys.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
    "sliding_window": 512,
    "final_logit_softcapping": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "use_bidirectional_attention": None,
    "tie_word_embeddings": True,
}
TOP_DEFAULTS: Mapping[str, object] = {"tie_word_embeddings": True}
TEXT_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma4_text": _DEFAULTS,
    "gemma4_unified_text": {
        **_DEFAULTS,
        "max_position_embeddings": 262_144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,  # it has no such key
        "use_bidirectional_attention": "vision",
    },
    "embedding_gemma2_text": {
        "vocab_size": 262_144,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        "sliding_window": 512,
        "hidden_size_per_layer_input": 512,
        "embedding_dim": 768,
    },
    "gemma3n_text": {
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
    },
}
NULL_IS_DEFAULT = frozenset(
    {"rope_parameters", "pad_token_id", "eos_token_id", "bos_token_id", "attention_k_eq_v"}
)
FULL_ATTENTION_EVERY = 6  # layers, where `layer_types` is not given

# Keys that say nothing about what a text decoder computes for inference, each with the reason.
IGNORED_KEYS: Mapping[str, str] = {
    "_attn_implementation": "kernel choice of transformers",
    "_attn_implementation_autoset": "kernel choice of transformers",
    "_commit_hash": "where transformers loaded it from",
    "_name_or_path": "where transformers loaded it from",
    "altup_coef_clip": "bounds Gemma 3n's coefficients in training; saved ones are within it",
    "altup_lr_multiplier": "training only",
    "architectures": "class name in transformers; model_type decides",
    "attention_dropout": "training only",
    "auto_map": "code of the checkpoint's own, which transformers runs only where it is trusted",
    "attn_implementation": "kernel choice of transformers",
    "cache_implementation": "runtime option of transformers",
    "chunk_size_feed_forward": "memory option of transformers",
    "experts_implementation": "kernel choice of transformers",
    "id2label": "classification heads only",
    "initializer_range": "training only",
    "is_decoder": "transformers' generic flag, without effect here",
    "is_encoder_decoder": "transformers' generic flag, always false here",
    "label2id": "classification heads only",
    "model_max_length": "the tokenizer's, for training",
    "name_or_path": "where transformers loaded it from",
    "num_labels": "classification heads only",
    "output_attentions": "output option of transformers",
    "output_hidden_states": "output option of transformers",
    "problem_type": "classification heads only",
    "query_pre_attn_scalar": "Gemma 3n's attention does not divide scores, whatever it says",
    "return_dict": "output option of transformers",
    "tokenizer_class": "the tokenizer's class in transformers",
    "torchscript": "export option of transformers",
    "transformers_version": "who wrote the file",
    "unsloth_fixed": "who wrote the file",
    "unsloth_version": "who wrote the file",
    "use_cache": "runtime option of transformers",
    # Generation options, which transformers takes from generation_config.json alone.
    **dict.fromkeys(
        (
            *("assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids"),
            *("begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"),
            *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff"),
            *("eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id"),
            *("forced_eos_token_id", "length_penalty", "max_length", "min_length"),
            *("no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
            *("num_beam_groups", "num_beams", "num_return_sequences", "output_scores"),
            *("remove_invalid_values", "repetition_penalty", "return_dict_in_generate"),
            *("suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p"),
            "typical_p",
        ),
        "generation option, read from generation_config.json",
    ),
}
IGNORED_TOWER_KEYS: Mapping[str, str] = {
    **IGNORED_KEYS,
    "dtype": "of the weights, which each file says of its own tensors",
    "torch_dtype": "of the weights, which each file says of its own tensors",
}
IGNORED_TOP_KEYS: Mapping[str, str] = {
    **IGNORED_KEYS,
    "audio_config": "audio input is not compiled",
    "audio_soft_tokens_per_image": "audio input is not compiled",
    "audio_token_id": "audio input is not compiled",
    "boa_token_id": "audio input is not compiled",
    "boi_token_id": "image input is not compiled",
    "eoa_token_id": "audio input is not compiled",
    "eoa_token_index": "audio input is not compiled",
    "eoi_token_id": "image input is not compiled",
    "image_token_id": "image input is not compiled",
    "video_token_id": "video input is not compiled",
    "vision_config": "image input is not compiled",
    "vision_soft_tokens_per_image": "image input is not compiled",
}
# Keys that no config class declares and that change what transformers computes all the same, with
# the only value that changes nothing.
ONLY_VALUES: Mapping[str, object] = {
    "is_causal": True,  # read by transformers' masks
}
