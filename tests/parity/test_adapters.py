"""Adapters of PEFT: the same weights as its own `merge_and_unload` makes, in float32."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.sources import open_source
from tests import hf, models
from tests.marks import slow_unless

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

ATTENTION = ["q_proj", "k_proj", "o_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
HALF = {"lora_alpha": 3, "r": 4}
WHOLE = {"save_embedding_layers": True}  # of `save_pretrained`
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {"target_modules": [*ATTENTION, "gate_proj", "down_proj"], **HALF}),
    "every linear": ("e2b", {"target_modules": "all-linear", **HALF}),
    "shared keys": ("e4b", {"target_modules": [*ATTENTION, "v_proj"], **HALF}),
    "a pattern": ("unified", {"target_modules": r".*\.(q|up)_proj", **HALF}),
    "rsLoRA": ("dense", {"target_modules": ATTENTION, "use_rslora": True, **HALF}),
    "DoRA": ("e2b", {"target_modules": [*ATTENTION, "per_layer_projection"], "use_dora": True}),
    "ranks and alphas": (
        "dense",
        {
            "target_modules": [*ATTENTION, "up_proj"],
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, r".*\.[12]\.mlp\.up_proj": 6},
            "alpha_pattern": {"q_proj": 5, "layers.1.self_attn.o_proj": 1},
            **HALF,
        },
    ),
    "layers": (
        "dense",
        {"target_modules": ["q_proj"], "layers_to_transform": [1, 3], "layers_pattern": "layers"},
    ),
    "experts": ("moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS, **HALF}),
    "one stack": ("moe", {"target_modules": [], "target_parameters": EXPERTS[1:], **HALF}),
    "router": ("moe", {"target_modules": ["router.proj", "gate_proj"], **HALF}),
    "norms": ("e2b", {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]}),
    "embedding": ("e2b", {"target_modules": ["embed_tokens", "q_proj"], **HALF}),
    "per-layer table": ("e4b", {"target_modules": ["embed_tokens_per_layer"], **HALF}),
    "DoRA of an embedding": ("dense", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "head": ("e2b", {"target_modules": ["lm_head", "q_proj"], **HALF}),
    "head and embedding": ("dense", {"target_modules": ["lm_head", "embed_tokens"], **HALF}),
    "own embedding": ("e2b", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "own head": ("dense", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "both its own": (
        "e2b",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "both tied": (
        "e2b",
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "tokens": ("dense", {"target_modules": ["q_proj"], "trainable_token_indices": [5, 250, 7]}),
    "both its own, under two names": (
        "e2b",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"], **WHOLE},
    ),
    "own head, under two names": (
        "dense",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], **WHOLE},
    ),
    "an embedding with its base": ("e2b", {"target_modules": ["embed_tokens"], **HALF, **WHOLE}),
    "tokens with their base": (
        "dense",
        {"target_modules": ["q_proj"], "trainable_token_indices": [5, 250, 7], **WHOLE},
    ),
    "untied head": ("dense, untied", {"target_modules": ["lm_head", "embed_tokens"], **HALF}),
    "untied tokens": (
        "e2b, untied",
        {"target_modules": ["q_proj"], "trainable_token_indices": {"lm_head": [3, 4]}},
    ),
    "every linear of Gemma 3n": ("3n e2b", {"target_modules": "all-linear", **HALF}),
    "EVA and its like": (
        "dense",
        {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"},
    ),
}


# One of each way to say what is trained; the others name other weights.
QUICK = ("dense", "DoRA", "experts", "untied head")


def write_adapter(folder: Path, model: Any, seed: int = 0, **config: Any) -> None:
    """Save an adapter whose every trained value is random."""
    whole = config.pop("save_embedding_layers", "auto")
    wrapped = get_peft_model(model, LoraConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    for tensor in wrapped.parameters():
        if tensor.requires_grad:
            tensor.data += 0.1 * torch.randn(tensor.shape, generator=generator)
    wrapped.save_pretrained(str(folder), save_embedding_layers=whole)


def base_model(kind: str) -> Any:
    text = models.ALL[kind]
    model = hf.load(text, models.random_weights(text), "float32")
    model.tie_weights()
    return model


def assert_same(kind: str, folder: Path, adapters: list[Path]) -> None:
    """Hold what is read next to what PEFT merges, adapter by adapter."""
    model = base_model(kind)
    for adapter in adapters:
        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    expected = model.state_dict()
    base = models.write_checkpoint(folder / "base", models.ALL[kind]).path
    names = tuple(map(str, adapters))
    with open_source(str(base), None, weights=True, adapters=names) as source:
        assert source.checkpoint is not None
        assert source.config.ties_head == model.config.tie_word_embeddings
        matched = match(source.checkpoint.tensors, source.config)
        read = row_reader(matched)
        assert ("lm_head.weight" in matched) is not source.config.ties_head
        for name, tensor in matched.items():
            given = expected[models.tensor_name(name, "transformers")].numpy()
            rows = [read(name, i, i + 1) for i in range(tensor.row_count)]
            scale = float(np.abs(given).max())
            np.testing.assert_allclose(
                np.concatenate(rows).reshape(given.shape), given, atol=4e-6 * scale, rtol=1e-5
            )
            np.testing.assert_array_equal(np.concatenate(rows), read(name, 0, tensor.row_count))
    unchanged = base_model(kind).state_dict()
    assert any(not torch.equal(unchanged[name], expected[name]) for name in unchanged)


@pytest.mark.parametrize("case", slow_unless(lambda case: case in QUICK, CASES))
def test_the_same_weights_as_peft_merges(case: str, tmp_path: Path) -> None:
    kind, config = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_adapter(tmp_path / "adapter", base_model(kind), **config)
        assert_same(kind, tmp_path, [tmp_path / "adapter"])


@pytest.mark.slow
def test_several_adapters_are_merged_in_order(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "third")]
    write_adapter(folders[0], base_model("e2b"), target_modules=ATTENTION, use_dora=True)
    write_adapter(folders[1], base_model("e2b"), 1, target_modules=["q_proj"], use_dora=True)
    write_adapter(
        folders[2], base_model("e2b"), 2, target_modules=["q_proj"], modules_to_save=["lm_head"]
    )
    assert_same("e2b", tmp_path, folders)
