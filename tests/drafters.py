"""Small random drafters for the small random models, written without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from gemma4_compile.model_spec.config.drafter import DrafterConfig, read_drafter
from gemma4_compile.tiny.architecture import tensor_shapes
from tests import models
from tests.models import tensor_name
from tests.random_values import random_tensor

Float32Array = npt.NDArray[np.float32]

CENTROIDS, TOP_K = 16, 4
CLUSTERED = ("e2b", "e4b")
HIDDEN = 32


@dataclass(frozen=True)
class Drafter:
    """A drafter on disk.

    Attributes
    ----------
    values : its `config.json`
    weights : by the names of the checkpoint
    """

    path: Path
    values: Mapping[str, Any]
    weights: Mapping[str, Float32Array]

    @property
    def config(self) -> DrafterConfig:
        return read_drafter(self.values)

    @property
    def plain_weights(self) -> dict[str, Float32Array]:
        """By the names that the reference has for them."""
        return {name.removeprefix("model."): value for name, value in self.weights.items()}


def drafter_config(
    kind: str, layers: str = "SSSF", *, tied: bool = True, **changes: Any
) -> dict[str, Any]:
    """`config.json` of a drafter for a model of `models.KINDS`; `changes` go into text_config."""
    target = models.KINDS[kind]
    unified = target["model_type"] == "gemma4_unified_text"
    text = {
        **target,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": len(layers),
        "layer_types": [models.LAYER_KINDS[letter] for letter in layers],
        "num_kv_shared_layers": len(layers),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "use_bidirectional_attention": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **changes,
    }
    for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        text.pop(name, None)
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_unified_assistant" if unified else "gemma4_assistant",
        "dtype": "float32",
        "backbone_hidden_size": target["hidden_size"],
        "use_ordered_embeddings": kind in CLUSTERED,
        "num_centroids": CENTROIDS,
        "centroid_intermediate_top_k": TOP_K,
        "tie_word_embeddings": tied,
        "text_config": text,
    }


def random_weights(values: Mapping[str, Any], seed: int = 7) -> dict[str, Any]:
    """Random weights of a drafter by checkpoint name."""
    text, backbone = values["text_config"], values["backbone_hidden_size"]
    hidden, vocab = text["hidden_size"], text["vocab_size"]
    shapes = {tensor_name(n, "transformers"): shape for n, shape in tensor_shapes(text).items()}
    shapes["pre_projection.weight"] = (hidden, 2 * backbone)
    shapes["post_projection.weight"] = (backbone, hidden)
    if values["use_ordered_embeddings"]:
        shapes["masked_embedding.centroids.weight"] = (values["num_centroids"], hidden)
    weights: dict[str, Any] = {
        name: random_tensor(name, shape, seed) for name, shape in shapes.items()
    }
    if values["use_ordered_embeddings"]:
        ordering = np.random.default_rng(seed).permutation(vocab)
        weights["masked_embedding.token_ordering"] = ordering
    return weights


def write_drafter(
    directory: Path,
    kind: str,
    *,
    seed: int = 7,
    values: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
) -> Drafter:
    """Write config and weights into `directory` (created if missing)."""
    values = drafter_config(kind) if values is None else values
    weights = random_weights(values, seed) if weights is None else weights
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(v) for name, v in weights.items()},
              directory / "model.safetensors")  # fmt: skip
    (directory / "config.json").write_text(json.dumps(values))
    return Drafter(directory, values, weights)
