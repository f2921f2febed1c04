"""`config.json` of drafters: what is read, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from tests.drafters import CENTROIDS, TOP_K, drafter_config

# Of E2B's drafter, without what has transformers' default.
E2B = {
    "model_type": "gemma4_assistant",
    "use_ordered_embeddings": True,
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 256,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": 4,
        "dtype": "bfloat16",
    },
}


def test_a_released_config_has_transformers_defaults() -> None:
    config = read_drafter(E2B)
    assert config.backbone_hidden_size == 1536
    assert (config.num_centroids, config.centroid_top_k) == (2048, 32)
    assert (config.cluster_size, config.candidates) == (128, 4096)
    assert config.head_dim == (256, 256, 256, 512)
    assert config.layer_types[-1] is AttentionKind.FULL
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["moe", "unified"])
def test_a_dense_head_has_no_clusters(kind: str) -> None:
    config = read_drafter(drafter_config(kind))
    assert (config.num_centroids, config.centroid_top_k) == (0, 0)
    assert config.candidates == config.vocab_size
    assert config.num_key_value_heads == (2, 2, 2, 1)


def test_the_form_of_transformers_is_read_alike() -> None:
    plain = drafter_config("moe")
    text = dict(plain["text_config"])
    full = {"head_dim": text.pop("global_head_dim"), "num_key_value_heads": 1}
    del text["num_global_key_value_heads"]
    text["per_layer_config"] = {"3": full}
    assert read_drafter({**plain, "text_config": text}) == read_drafter(plain)


def test_none_shared_means_all_shared() -> None:
    plain = drafter_config("e2b")
    assert read_drafter(drafter_config("e2b", num_kv_shared_layers=0)) == read_drafter(plain)


def test_unknown_keys_are_told() -> None:
    told: list[str] = []
    read_drafter({**drafter_config("e2b", invented=1), "another": 2}, told.extend)
    assert told == ["text_config.invented", "another"]


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"model_type": "gemma4"}, {}, "`model_type`: 'gemma4' is no drafter"),
        ({"model_type": ["x"]}, {}, "`model_type`"),
        ({"text_config": None}, {}, "`text_config`"),
        ({"backbone_hidden_size": 0}, {}, "`backbone_hidden_size`"),
        ({"backbone_hidden_size": "64"}, {}, "`backbone_hidden_size`"),
        ({"num_centroids": 24}, {}, "24 clusters do not share the vocabulary of 256"),
        ({"num_centroids": 1 << 40}, {}, "`num_centroids`"),
        ({"centroid_intermediate_top_k": 17}, {}, "`centroid_intermediate_top_k`"),
        ({"use_ordered_embeddings": 1}, {}, "`use_ordered_embeddings`"),
        ({"tie_word_embeddings": None}, {}, "`tie_word_embeddings`"),
        ({"quantization_config": {"bits": 4}}, {}, "quantised checkpoints"),
        ({}, {"num_hidden_layers": 1 << 30}, "`text_config.num_hidden_layers`"),
        ({}, {"num_kv_shared_layers": 2}, "all 4 layers of a drafter read the target's keys"),
        ({}, {"enable_moe_block": True}, "`text_config.enable_moe_block`"),
        ({}, {"use_double_wide_mlp": True}, "`text_config.use_double_wide_mlp`"),
        ({}, {"hidden_size_per_layer_input": 32}, "`text_config.hidden_size_per_layer_input`"),
        ({}, {"num_attention_heads": 3, "num_key_value_heads": 2}, "does not divide"),
        ({}, {"layer_types": ["sliding_attention"]}, "`text_config.layer_types`"),
        ({}, {"model_type": "gemma3_text"}, "`text_config.model_type`"),
        ({}, {"rms_norm_eps": float("nan")}, "`text_config.rms_norm_eps`"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    changes: dict[str, Any], text: dict[str, Any], message: str
) -> None:
    values = {**drafter_config("e2b", **text), **changes}
    with pytest.raises(ConfigError) as raised:
        read_drafter(values)
    assert message in str(raised.value)


def test_too_many_candidates_are_refused() -> None:
    values = {**E2B, "centroid_intermediate_top_k": 256, "num_centroids": 512}
    with pytest.raises(ConfigError, match="256 clusters have 131072 tokens"):
        read_drafter(values)


def test_a_list_is_no_config() -> None:
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_drafter([])  # type: ignore[arg-type]  # what a file may hold


def test_a_drafter_is_no_model() -> None:
    with pytest.raises(ConfigError, match="is a drafter") as raised:
        Gemma4Config.from_dict(E2B)
    assert "--drafter" in (raised.value.hint or "")


def test_small_configs_have_small_clusters() -> None:
    config = read_drafter(drafter_config("e2b"))
    assert (config.num_centroids, config.centroid_top_k) == (CENTROIDS, TOP_K)
