"""A head beside the token embedding: what is tied, what is read, and what is missed by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.models import (
    E2B_LIKE,
    Float32Array,
    Form,
    random_weights,
    tensor_name,
    write_checkpoint,
)

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
WEIGHTS = random_weights(E2B_LIKE)
OTHER = WEIGHTS[EMBEDDING] + np.float32(0.5)
HELD: Mapping[str, Mapping[str, Float32Array]] = {
    "the embedding alone": {EMBEDDING: WEIGHTS[EMBEDDING]},
    "a copy": {EMBEDDING: WEIGHTS[EMBEDDING], HEAD: WEIGHTS[EMBEDDING]},
    "another": {EMBEDDING: WEIGHTS[EMBEDDING], HEAD: OTHER},
    "the head alone": {HEAD: OTHER},
}
FORMS: tuple[Form, ...] = ("hub", "transformers")


def write(directory: Path, form: Form, held: str, *, tied: bool) -> Path:
    """A checkpoint whose embedding and head are those of HELD."""
    written = write_checkpoint(
        directory, {**E2B_LIKE, "tie_word_embeddings": tied}, form=form, weights=WEIGHTS
    )
    rest = {name: values for name, values in WEIGHTS.items() if name != EMBEDDING}
    tensors = {tensor_name(name, form): v for name, v in {**rest, **HELD[held]}.items()}
    write_safetensors(written.path / "model.safetensors", tensors, "float32")
    return written.path


def read(directory: Path, *, weights: bool = True) -> tuple[Gemma4Config, Checkpoint | None]:
    with open_source(str(directory), None, weights=weights) as source:
        return source.config, source.checkpoint


def embedding_and_head(directory: Path) -> tuple[Float32Array, Float32Array]:
    """The two matrices that a package of the checkpoint would have."""
    config, checkpoint = read(directory)
    assert checkpoint is not None
    rows = row_reader(match(checkpoint.tensors, config))
    embedding = rows(EMBEDDING, 0, 256)
    return embedding, embedding if config.ties_head else rows(HEAD, 0, 256)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_the_two_are_those_of_transformers(
    form: Form, tied: bool, held: str, tmp_path: Path
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = write(tmp_path / "model", form, held, tied=tied)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = [
        layer.weight.detach().numpy() for layer in (model.get_input_embeddings(), model.lm_head)
    ]
    if not tied and len(HELD[held]) == 1:  # transformers fills the other at random
        absent = HEAD if EMBEDDING in HELD[held] else tensor_name(EMBEDDING, "hub")
        with pytest.raises(CheckpointError, match=f"tensor `{absent}` is missing"):
            embedding_and_head(path)
        return
    for found, matrix in zip(embedding_and_head(path), expected, strict=True):
        np.testing.assert_array_equal(found, matrix)


def test_a_head_that_config_ties_and_that_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "model", "hub", "another", tied=True)
    for weights in (True, False):
        assert not read(path, weights=weights)[0].ties_head
        assert "`lm_head.weight` and `model.language_model.embed_tokens" in capsys.readouterr().err
    path = write(tmp_path / "other", "hub", "a copy", tied=True)
    assert read(path)[0].ties_head
    assert "warning" not in capsys.readouterr().err


def test_a_library_alone_needs_no_whole_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "model", "hub", "another", tied=True)
    (path / "model.safetensors").write_bytes(b"cut")
    assert read(path, weights=False)[0].ties_head, "as config.json says"


@pytest.mark.parametrize("shape", [(255, 96), (256, 95), (256,)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_another_shape_is_named(
    tied: bool, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / "model", "hub", "a copy", tied=tied)
    tensors = {tensor_name(name): values for name, values in WEIGHTS.items()}
    tensors[HEAD] = np.zeros(shape, np.float32)
    write_safetensors(path / "model.safetensors", tensors, "float32")
    with pytest.raises(CheckpointError, match=r"tensor `lm_head\.weight` has shape"):
        embedding_and_head(path)


def test_a_copy_that_another_shard_holds_in_another_dtype(tmp_path: Path) -> None:
    """Compared by value: bfloat16 here, float32 there."""
    weights = random_weights(E2B_LIKE, dtype="bfloat16")
    path = write_checkpoint(tmp_path / "model", E2B_LIKE, weights=weights).path
    (path / "model.safetensors").unlink()
    shards = {
        "a.safetensors": ({tensor_name(n): v for n, v in weights.items()}, "bfloat16"),
        "b.safetensors": ({HEAD: weights[EMBEDDING]}, "float32"),
    }
    weight_map = {}
    for file, (tensors, dtype) in shards.items():
        write_safetensors(path / file, tensors, dtype)
        weight_map.update(dict.fromkeys(tensors, file))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read(path)[0].ties_head


@pytest.mark.parametrize("front", ["base_model.model.", "_orig_mod.", "module."])
@pytest.mark.parametrize("held", ["a copy", "another"])
def test_other_spellings_of_both_are_compared(held: str, front: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model", "hub", held, tied=True)
    expected = embedding_and_head(path)
    rest = {name: values for name, values in WEIGHTS.items() if name != EMBEDDING}
    tensors = {front + tensor_name(name): v for name, v in {**rest, **HELD[held]}.items()}
    write_safetensors(path / "model.safetensors", tensors, "float32")
    assert read(path, weights=False)[0].ties_head == (held == "a copy")
    for found, matrix in zip(embedding_and_head(path), expected, strict=True):
        np.testing.assert_array_equal(found, matrix)


def test_weights_that_are_not_finite_are_a_copy_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "model", "hub", "a copy", tied=True)
    values = WEIGHTS[EMBEDDING].copy()
    values[3, 5] = np.nan
    tensors = {tensor_name(n): v for n, v in {**WEIGHTS, EMBEDDING: values, HEAD: values}.items()}
    write_safetensors(path / "model.safetensors", tensors, "float32")
    assert read(path)[0].ties_head
