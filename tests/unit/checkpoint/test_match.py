"""Checkpoints: one file or many, what is skipped, and what is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint import match as checkpoint
from gemma4_compile.checkpoint import weight_files
from gemma4_compile.checkpoint.chat_files import read_chat_template
from gemma4_compile.checkpoint.match import Checkpoint, _checked_tensor, match, row_reader
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Source
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.models import E2B_LIKE, Form, random_weights, write_checkpoint

PREFIX = "model.language_model."
VISION = {
    "model.vision_tower.patch_embedder.input_proj.weight": np.zeros((4, 8), np.float32),
    "model.audio_tower.output_proj.bias": np.zeros(3, np.float32),
    "model.embed_vision.embedding_projection.weight": np.zeros((2, 2), np.float32),
    "model.embed_audio.embedding_projection.weight": np.zeros((2, 2), np.float32),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", E2B_LIKE, dtype="bfloat16").path


def matched(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    config = Gemma4Config.from_dict(checkpoint.config)
    return match(checkpoint.tensors, config)


def split_into_shards(directory: Path, count: int = 3) -> dict[str, str]:
    """Replace the single file by shards and an index; returns its weight_map."""
    weights = {
        PREFIX + name: values for name, values in random_weights(E2B_LIKE, dtype="bfloat16").items()
    }
    names = list(weights)
    weight_map = {}
    for index in range(count):
        file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        part = {name: weights[name] for name in names[index::count]}
        write_safetensors(directory / file, part, "bfloat16")
        weight_map.update(dict.fromkeys(part, file))
    (directory / "model.safetensors").unlink()
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Mapping[str, object]) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": dict(weight_map)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("form", ["hub", "transformers"])
def test_every_source_is_found_and_read(form: Form, tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, E2B_LIKE, form=form)
    tensors = matched(Checkpoint.open(tmp_path))
    read = row_reader(tensors)
    assert set(tensors) == set(written.weights)
    for name, values in written.weights.items():
        assert np.array_equal(read(name, 0, len(values)), values)


def test_shards_equal_the_single_file(directory: Path) -> None:
    read = row_reader(matched(Checkpoint.open(directory)))
    whole = {name: read(name, 0, 1) for name in matched(Checkpoint.open(directory))}
    split_into_shards(directory)
    read = row_reader(matched(Checkpoint.open(directory)))
    assert all(np.array_equal(read(name, 0, 1), rows) for name, rows in whole.items())


def test_weights_without_their_values_are_called_that(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, E2B_LIKE)
    weights = {PREFIX + name: values for name, values in written.weights.items()}
    weights[f"{PREFIX}norm.weight"] = np.zeros(0, np.float32)
    write_safetensors(tmp_path / "model.safetensors", weights, "float32")
    with pytest.raises(CheckpointError, match=r"norm\.weight` has shape \(0,\)") as caught:
        matched(Checkpoint.open(tmp_path))
    assert "without its values" in str(caught.value.hint)


def test_media_tensors_and_unused_keys_are_skipped(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, E2B_LIKE)
    weights = {PREFIX + name: values for name, values in written.weights.items()}
    shared = {
        f"{PREFIX}layers.3.self_attn.{name}.weight": np.zeros((32, 96), np.float32)
        for name in ("k_proj", "v_proj", "k_norm")
    }
    write_safetensors(tmp_path / "model.safetensors", {**weights, **VISION, **shared}, "float32")
    assert set(matched(Checkpoint.open(tmp_path))) == set(written.weights)


@pytest.mark.parametrize(
    "name",
    [
        "head.weight",
        f"{PREFIX}layers.0.self_attn.extra.weight",
        f"{PREFIX}layers.7.self_attn.k_proj.weight",
        "model.other_tower.weight",
    ],
)
def test_extra_tensor_is_named(name: str, directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    some = next(iter(checkpoint.tensors.values()))
    more = replace(checkpoint, tensors={**checkpoint.tensors, name: replace(some, name=name)})
    with pytest.raises(CheckpointError, match=f"tensor `{name}` .* no part of the model"):
        matched(more)


def test_missing_tensor_is_named(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    name = f"{PREFIX}layers.1.mlp.up_proj.weight"
    fewer = {key: value for key, value in checkpoint.tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=f"`{name}` is missing"):
        matched(replace(checkpoint, tensors=fewer))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: replace(tensor, shape=(1, 2)), r"shape \(1, 2\), expected \(128, 96\)"),
        (lambda tensor: replace(tensor, dtype="F8_E4M3"), "dtype F8_E4M3"),
        (lambda tensor: replace(tensor, dtype="I32"), "dtype I32"),
    ],
)
def test_wrong_shape_or_dtype_is_named(
    change: Callable[[TensorInfo], TensorInfo], message: str, directory: Path
) -> None:
    checkpoint = Checkpoint.open(directory)
    name = f"{PREFIX}layers.1.mlp.up_proj.weight"
    wrong = change(checkpoint.tensors[name])
    with pytest.raises(CheckpointError, match=f"`{name}` has {message}"):
        matched(replace(checkpoint, tensors={**checkpoint.tensors, name: wrong}))


def test_same_tensor_under_both_prefixes(directory: Path) -> None:
    """A copy says nothing new; which of two values is meant could not be told."""
    checkpoint = Checkpoint.open(directory)
    tensors, name = checkpoint.tensors, f"{PREFIX}layers.0.input_layernorm.weight"
    copy = replace(tensors[name], name="model.layers.0.input_layernorm.weight")
    matched(replace(checkpoint, tensors={**tensors, copy.name: copy}))
    other = replace(tensors[f"{PREFIX}norm.weight"], name=copy.name)
    with pytest.raises(CheckpointError, match=r"are the same, with different values") as caught:
        matched(replace(checkpoint, tensors={**tensors, copy.name: other}))
    assert name in str(caught.value)
    assert copy.name in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_missing_file_is_named(name: str, directory: Path) -> None:
    split_into_shards(directory)
    (directory / name).unlink()
    with pytest.raises(CheckpointError, match=f"`{name}` is missing"):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/passwd",
        "a/../../b.safetensors",
        "a//b.safetensors",
        "./../b.safetensors",
        "a\\b.safetensors",
        "..",
        "",
        3,
        None,
        "x\0.safetensors",
        "C:x.safetensors",
        "a/.b/c.safetensors",
        "a\nb.safetensors",
        f"{1100 * 'x'}.safetensors",
    ],
)
def test_index_names_files_below_its_folder_only(file: object, directory: Path) -> None:
    weight_map = split_into_shards(directory)
    write_index(directory, {**weight_map, "model.x": file})
    with pytest.raises(CheckpointError, match="not a plain file name"):
        Checkpoint.open(directory)


def test_the_files_say_what_is_in_them_whatever_the_index_says(directory: Path) -> None:
    """As in transformers, which reads every tensor of the files that the index names."""
    weight_map = split_into_shards(directory)
    first, second = sorted(set(weight_map.values()))[:2]
    name = next(name for name, file in weight_map.items() if file == first)
    expected = Checkpoint.open(directory).tensors
    for other in (
        {**weight_map, name: second},
        {key: file for key, file in weight_map.items() if key != name},
        {key: f"./{file}" for key, file in weight_map.items()},
    ):
        write_index(directory, other)
        assert Checkpoint.open(directory).tensors == expected
    write_index(directory, {**weight_map, name: "pytorch_model.bin"})
    with pytest.raises(CheckpointError, match="only safetensors"):
        Checkpoint.open(directory)


def test_what_the_index_alone_lists_is_missed_only_where_it_is_needed(directory: Path) -> None:
    weight_map = split_into_shards(directory)
    file = next(iter(weight_map.values()))
    write_index(directory, {**weight_map, "lm_head.weight": file})
    assert "lm_head.weight" not in matched(Checkpoint.open(directory))
    name = f"{PREFIX}norm.weight"
    rest = {key: values for key, values in random_weights(E2B_LIKE).items() if key != "norm.weight"}
    tensors = {PREFIX + key: values for key, values in rest.items()}
    write_safetensors(directory / file, tensors, "bfloat16")
    write_index(directory, dict.fromkeys([*tensors, name], file))
    with pytest.raises(CheckpointError, match=f"`{name}` is missing"):
        matched(Checkpoint.open(directory))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', "\udcff"])
def test_damaged_index(content: str, directory: Path) -> None:
    split_into_shards(directory)
    index = directory / "model.safetensors.index.json"
    index.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json` is damaged"):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "`pytorch_model.bin` of .* is not read: only safetensors"),
        ("consolidated.pt", "only safetensors"),
        ("other.safetensors", "neither model.safetensors nor"),
        ("readme.md", "has no weights"),
    ],
)
def test_directory_without_readable_weights(name: str, message: str, directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / name)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(directory)


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint directory"):
        Checkpoint.open(tmp_path / "nothing")


def test_tokenizer_files(directory: Path) -> None:
    checkpoint = Checkpoint.open(directory)
    names = [file.name for file in checkpoint.tokenizer_files()]
    assert names[0] == "tokenizer.json"
    parsed, left_out = checkpoint.tokenizer(256)
    assert left_out == []
    model = parsed["model"]
    assert isinstance(model, dict)
    assert model["type"] == "BPE"
    with pytest.raises(CheckpointError, match="token id"):
        checkpoint.tokenizer(64)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"`tokenizer\.json` is missing"):
        checkpoint.tokenizer_files()


@pytest.mark.parametrize("content", ["{}", '{"model": {"vocab": []}}', '{"model": 3}', "[1"])
def test_damaged_tokenizer(content: str, directory: Path) -> None:
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint.open(directory).tokenizer(256)


@pytest.mark.parametrize("kind", ["Unigram", "WordPiece"])
def test_a_tokenizer_of_another_kind_is_named(kind: str, directory: Path) -> None:
    model = {"type": kind, "vocab": [["<pad>", 0.0]] if kind == "Unigram" else {"<pad>": 0}}
    (directory / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(CheckpointError, match=f"of the kind '{kind}', expected `BPE`") as found:
        Checkpoint.open(directory).tokenizer(256)
    assert found.value.hint


def test_missing_generation_config_is_empty(directory: Path) -> None:
    assert Checkpoint.open(directory).generation_config["do_sample"] is True
    (directory / "generation_config.json").unlink()
    assert Checkpoint.open(directory).generation_config == {}


def test_symbolic_links_into_a_cache_are_followed(directory: Path, tmp_path: Path) -> None:
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "1",
        tmp_path / "models--a--b" / "blobs",
    )
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in directory.iterdir():
        shutil.copyfile(file, blobs / f"hash-of-{file.name}")
        (snapshot / file.name).symlink_to(Path("../../blobs", f"hash-of-{file.name}"))
    opened = Checkpoint.open(snapshot)
    assert set(matched(opened)) == set(matched(Checkpoint.open(directory)))
    assert len(opened.tokenizer_files()) == 4
    assert read_chat_template(snapshot)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ],
)
def test_links_out_of_the_directory_are_refused(name: str, directory: Path, tmp_path: Path) -> None:
    (directory / name).rename(tmp_path / "elsewhere")
    (directory / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"`{name}` .* a link that leads out"):
        Checkpoint.open(directory).tokenizer_files()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_pipes_and_circles_are_refused(name: str, directory: Path) -> None:
    def read_all() -> None:
        opened = Checkpoint.open(directory)
        opened.tokenizer(256)
        opened.tokenizer_files()

    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(CheckpointError, match="no regular file"):
        read_all()
    (directory / name).unlink()
    (directory / name).symlink_to(name)
    with pytest.raises(CheckpointError):
        read_all()


def test_a_file_of_gigabytes_is_not_read(directory: Path) -> None:
    os.truncate(directory / "config.json", 1 << 40)
    with pytest.raises(CheckpointError, match="too large"):
        Checkpoint.open(directory)


def test_an_index_of_many_shards_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    names = {f"t{i}": f"s{i}.safetensors" for i in range(300_000)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="300000 shards, at most 4096"):
        Checkpoint.open(directory)


def test_tensors_of_all_shards_are_counted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "MAX_TENSORS", 3)
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    (directory / "model-2.safetensors").write_bytes(content)
    names = {f"t{i}": f"model-{i}.safetensors" for i in (1, 2)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="more than 3 tensors"):
        Checkpoint.open(directory)


@pytest.mark.parametrize("words", [200_000, 3_000_000])
def test_a_tokenizer_is_no_larger_than_its_model(
    words: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many words, or one long text: refused before either is in memory as objects."""
    monkeypatch.setattr(checkpoint, "MAX_VALUES", 100_000)
    text = ",".join(f'"{i}":0' for i in range(words))
    (directory / "tokenizer.json").write_text(f'{{"model": {{"vocab": {{{text}}}}}}}')
    message = "too large" if words > 10**6 else "more than 104096 values"
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(directory).tokenizer(256)


def test_a_vocabulary_resized_in_half_says_how_to_save_it(tmp_path: Path) -> None:
    source = Source("embed_tokens.weight", (10, 4))
    tensor = TensorInfo("model.embed_tokens.weight", "BF16", (11, 4), tmp_path / "x", 0, 88)
    with pytest.raises(CheckpointError, match=r"\(11, 4\), expected \(10, 4\)") as caught:
        _checked_tensor(tensor, source)
    assert "resize_token_embeddings" in str(caught.value.hint)
