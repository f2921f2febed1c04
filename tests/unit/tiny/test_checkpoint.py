from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from gemma4_compile.checkpoint.drafter import match_drafter, open_drafter, with_drafter
from gemma4_compile.checkpoint.match import Checkpoint, match
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.parameters import parameter_table
from gemma4_compile.model_spec.vision.component import VISION
from gemma4_compile.tiny import checkpoint, materialize, materialize_drafter
from gemma4_compile.tiny.architecture import tensor_shapes

MOST_BYTES = 10_000_000  # the weights lie in the repository
MOST_DRAFTER_BYTES = 1_000_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    materialize(folder)
    return folder


def tower_shapes() -> dict[str, tuple[int, ...]]:
    config = Gemma4Config.from_dict(checkpoint.config(), modalities=None)
    return {
        source.name: source.shape
        for component in (VISION, AUDIO)
        for parameter in component.parameters(config)
        for source in parameter.sources
    }


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def test_every_tensor_of_the_architecture_is_there_in_bfloat16_and_trained(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    assert path.stat().st_size <= MOST_BYTES
    shapes = tensor_shapes(checkpoint.config()["text_config"])
    assert 1e6 <= sum(int(np.prod(shape)) for shape in shapes.values()) <= 4e6
    with safe_open(path, framework="np") as file:
        stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        found = {
            name.removeprefix("model.language_model."): tuple(tensor.get_shape())
            for name, tensor in stored.items()
        }
        assert found == shapes | tower_shapes()
        assert {tensor.get_dtype() for tensor in stored.values()} == {"BF16"}
        assert all(tensor[...].any() for name, tensor in stored.items() if "position" in name)


def test_its_drafter_is_small_whole_and_of_its_tokens(tiny: Path, tmp_path: Path) -> None:
    materialize_drafter(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.glob("[cm]*")) <= MOST_DRAFTER_BYTES
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
        assert all(file.get_tensor(name).any() for name in file.keys())  # noqa: SIM118
    target = Gemma4Config.from_dict(checkpoint.config())
    with open_drafter(str(tmp_path), target, weights=True) as source:
        assert source is not None
        assert source.checkpoint is not None
        found = match_drafter(source.checkpoint, with_drafter(target, source))
    expected = {source.name for p in parameter_table(with_drafter(target, source))
                for source in p.sources}  # fmt: skip
    assert found.keys() == expected


def test_it_sees_and_hears_and_is_text_where_nothing_else_is_asked_for(tiny: Path) -> None:
    values = json.loads((tiny / "config.json").read_text())
    plain = Gemma4Config.from_dict(values)
    assert plain.vision is None
    assert plain.audio is None
    stored = Checkpoint.open(tiny).tensors
    text = tensor_shapes(values["text_config"]).keys()
    assert match(stored, plain).keys() == text
    whole = Gemma4Config.from_dict(values, modalities=None)
    assert match(stored, whole).keys() == text | tower_shapes().keys()


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
        (" the word", ["▁the", "▁word"]),
        (" 12", ["▁", "1", "2"]),
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
