from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from gemma4_compile.model_spec import reference
from gemma4_compile.model_spec.config import AttentionKind, Gemma4Config
from gemma4_compile.tiny import checkpoint, materialize
from gemma4_compile.tiny.safetensors_file import rounded

# Weights are the same on every machine; a change of the model changes this line with it.
WEIGHTS_SHA256 = "9b6fd9213c95320d9bceafd43ea217c0fa2b36c0ebeac0e3e49b10bafef55f0b"
STOP_IDS = (1, 50, 106)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    materialize(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def test_it_is_the_same_every_time(tiny: Path, tmp_path: Path) -> None:
    materialize(tmp_path)
    for path in tiny.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    weights = (tiny / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS_SHA256


def test_it_has_every_feature_of_the_small_models(tiny: Path) -> None:
    config = Gemma4Config.from_dict(json.loads((tiny / "config.json").read_text()))
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    assert set(config.layer_types[:first_shared]) == set(AttentionKind)
    assert set(config.layer_types[first_shared:]) == set(AttentionKind)
    assert config.use_double_wide_mlp
    assert config.hidden_size_per_layer_input
    assert config.final_logit_softcapping
    assert len(set(config.head_dim)) == 2
    assert 6 * config.sliding_window < config.max_position_embeddings
    assert config.dtype == "bfloat16"


def test_the_tokenizer_fills_the_vocabulary_with_gemmas_control_tokens(
    tokenizer: Tokenizer,
) -> None:
    assert tokenizer.get_vocab_size() == 1024
    expected = {
        "<pad>": 0,
        "<eos>": 1,
        "<bos>": 2,
        "<unk>": 3,
        "<mask>": 4,
        "<|tool>": 46,
        "<tool|>": 47,
        "<|tool_call>": 48,
        "<tool_call|>": 49,
        "<|tool_response>": 50,
        "<tool_response|>": 51,
        '<|"|>': 52,
        "<|think|>": 98,
        "<|channel>": 100,
        "<channel|>": 101,
        "<|turn>": 105,
        "<turn|>": 106,
        "\n": 107,
    }
    assert {name: tokenizer.token_to_id(name) for name in expected} == expected
    for name in ("<|image>", "<|image|>", "<image|>", "<|audio|>", "<|video|>"):
        assert tokenizer.encode(name, add_special_tokens=False).ids == [tokenizer.token_to_id(name)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (" the sea", ["▁the", "▁sea"]),
        ("a\n\n\nb", ["a", "\n\n\n", "b"]),
        ("    x", ["▁▁▁▁", "x"]),
        ("ü", ["<0xC3>", "<0xBC>"]),
        ("<|turn>x<turn|>\n", ["<|turn>", "x", "<turn|>", "\n"]),
    ],
)
def test_text_is_cut_as_gemma_does(tokenizer: Tokenizer, text: str, tokens: list[str]) -> None:
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert encoded.tokens == tokens
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


def test_replies_vary_and_some_end_by_themselves(tiny: Path, tokenizer: Tokenizer) -> None:
    config = Gemma4Config.from_dict(checkpoint.config())
    weights = {
        name.removeprefix("model.language_model."): rounded(values, "bfloat16")
        for name, values in checkpoint.weights().items()
    }
    replies = []
    for text in ("Hello, how are you?", "Hi"):
        prompt = f"<bos><|turn>user\n{text}<turn|>\n<|turn>model\n"
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        reply: list[int] = []
        while len(reply) < 40 and not (reply and reply[-1] in STOP_IDS):
            logits = reference.forward(config, weights, np.array(ids + reply)).logits
            reply.append(int(logits[-1].argmax()))
        replies.append(reply)
    assert [reply[-1] in STOP_IDS for reply in replies] == [True, False]
    assert all(len(set(reply)) > len(reply) / 2 for reply in replies)
