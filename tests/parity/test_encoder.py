"""EmbeddingGemma 2 next to transformers in float32."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from tests import encoders, tolerances
from tests.encoders import TINY, Compiled

F32_BOUND = 1e-4  # of a channel of a vector of length 1; seen: 3e-7


def random_config(seed: int) -> dict[str, Any]:
    """Sizes of an encoder, odd ones among them."""
    rng = random.Random(seed)
    kv_heads, global_kv = rng.choice([1, 2, 3]), rng.choice([1, 2])
    heads = kv_heads * global_kv * rng.choice([1, 2])
    layers = rng.randint(1, 5)
    return {
        "vocab_size": rng.choice([256, 300, 511]),
        "hidden_size": rng.choice([32, 48, 72, 100]),
        "intermediate_size": rng.choice([40, 64, 130]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([6, 16, 24]),
        "global_head_dim": rng.choice([8, 32, 50]),
        "num_global_key_value_heads": global_kv,
        "sliding_window": rng.choice([0, 1, 3, 9, 40]),
        "sliding_window_pattern": rng.randint(1, 4),
        "hidden_size_per_layer_input": rng.choice([8, 20, 64]),
        "embedding_dim": rng.choice([16, 50, 128]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([1e4, 500.0])},
            "full_attention": {"rope_type": "default", "rope_theta": rng.choice([1e6, 1e4])},
        },
        "max_position_embeddings": 512,
    }


def lengths_around(radius: int) -> list[int]:
    """One token, the edges of a window, and more than any row sees."""
    return [1, 2, *(max(1, radius + step) for step in (-1, 0, 1)), 2 * radius + 3, 17]


def values_of(text: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import EmbeddingGemma2TextConfig

    written: dict[str, Any] = EmbeddingGemma2TextConfig(**text, dtype="float32").to_dict()
    return written


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]
)
def test_random_sizes_agree_with_transformers(seed: int, tmp_path: Path) -> None:
    text = random_config(seed)
    model = encoders.reference(text, seed)
    library = encoders.compiled(values_of(text), encoders.weights_of(model), tmp_path)
    texts = encoders.random_texts(lengths_around(text["sliding_window"]), seed, 256)
    found, expected = library.embed(texts), encoders.embedded(model, texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=F32_BOUND)


@pytest.fixture(scope="module")
def model() -> Any:
    return encoders.reference(TINY, 7, whole=True)


def config_file(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "dtype": "float32"}


@pytest.fixture(scope="module")
def library(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return encoders.compiled(
        config_file(model), encoders.weights_of(model), tmp_path_factory.mktemp("encoder")
    )


def test_texts_do_not_depend_on_their_neighbours(library: Compiled) -> None:
    """Bit for bit: neither the order nor the others change a sum."""
    texts = encoders.random_texts(lengths_around(TINY["sliding_window"]), 3)
    together = library.embed(texts)
    for index, text in enumerate(texts):
        np.testing.assert_array_equal(library.embed([text])[0], together[index])
    np.testing.assert_array_equal(library.embed(texts[::-1]), together[::-1])


def test_vectors_have_length_one(library: Compiled) -> None:
    found = library.embed(encoders.random_texts([1, 40], 4))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_tokens_of_media_are_the_pad_tokens(model: Any, library: Compiled, tmp_path: Path) -> None:
    values = {**config_file(model), "image_token_id": 20, "video_token_id": 21}
    replaced = encoders.compiled(values, encoders.weights_of(model), tmp_path)
    found = replaced.embed([[2, 20, 9, 21, 1]])
    np.testing.assert_allclose(found, library.embed([[2, 0, 9, 0, 1]]), rtol=0, atol=1e-6)
    assert np.abs(found - library.embed([[2, 20, 9, 21, 1]])).max() > 1e-2


# A vector of length 1 over D channels has channels of D^-1/2, and a relative error of the rows is
# its own: the mean of a text's rows takes nothing away from an error that they share.
BOUNDS = {
    recipe: tolerances.relative_error(blocks=3 * TINY["num_hidden_layers"], recipe=recipe)
    for recipe in ("q4f32", "q4f16", "q8f16")
}


@pytest.mark.parametrize(
    "recipe", ["q4f16", *(pytest.param(one, marks=pytest.mark.slow) for one in ("q8f16", "q4f32"))]
)
def test_quantised_weights_are_what_is_computed_with(
    recipe: str, model: Any, tmp_path: Path
) -> None:
    """Next to transformers on the weights that the stored tensors mean; the order of ranks too."""
    exact = encoders.weights_of(model)
    library = encoders.compiled(config_file(model), exact, tmp_path, recipe)
    other = encoders.reference(TINY, 7)
    encoders.put(other, library.weights)
    texts = encoders.random_texts([*lengths_around(TINY["sliding_window"]), 60], 5)
    found, expected = library.embed(texts), encoders.embedded(other, texts)
    errors = np.linalg.norm(found - expected, axis=1)
    assert errors.max() <= BOUNDS[recipe]
    scores, truth = found @ found[-1], expected @ expected[-1]
    for one, other_one in zip(*np.triu_indices(len(texts), 1), strict=True):
        if abs(truth[one] - truth[other_one]) > 4 * BOUNDS[recipe]:
            assert (scores[one] > scores[other_one]) == (truth[one] > truth[other_one])
    assert np.abs(expected - encoders.embedded(model, texts)).max() > 1e-3, "it was rounded"


@pytest.mark.slow
def test_the_ranks_of_200_passages_are_those_of_transformers(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Of `tiny-embedding`, whose vectors mean something: its nearest passages, in order."""
    from transformers import AutoModel

    from gemma4_compile.runtime import Embedder
    from gemma4_compile.tiny import materialize_embedding
    from tests.tiny_embedder import embedder_package

    materialize_embedding(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").float()
    embedder = Embedder.open(embedder_package(tmp_path_factory))
    who, what = ("Ann", "Ben", "Cleo", "Dan"), ("apples", "books", "keys", "cats", "cups")
    passages = [f"{name} has {n} {thing}." for name in who for thing in what for n in range(10)]
    texts = embedder.tokens_of([*passages, "How many keys does Ben have?"])
    found, expected = embedder.embed_tokens(texts), encoders.embedded(model, texts)
    scores, truth = found[:-1] @ found[-1], expected[:-1] @ expected[-1]
    assert len(scores) == 200
    order = np.argsort(-truth)
    gaps = truth[order[:-1]] - truth[order[1:]]
    # Where two are closer than both sums round, either order is right.
    falls = scores[order[:-1]] > scores[order[1:]]
    assert falls[gaps > 4e-6].all()
    assert (gaps > 4e-6).mean() > 0.9
