"""`tiny`'s text decoder as a folder, as weights, and in GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile import tiny
from gemma4_compile.checkpoint.safetensors_file import read_header, read_rows
from tests import models
from tests.gguf_files import Type, all_of, write_gguf

PREFIX = "model.language_model."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.materialize(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> models.Checkpoint:
    """`tiny`'s text decoder."""
    config = json.loads((folder / "config.json").read_bytes())["text_config"]
    weights = {
        name.removeprefix(PREFIX): read_rows(one, 0, one.row_count).reshape(one.shape)
        for name, one in read_header(folder / "model.safetensors").items()
        if name.startswith(PREFIX)
    }
    return models.Checkpoint(folder, config, weights, "bfloat16")


@pytest.fixture(scope="module")
def file(
    checkpoint: models.Checkpoint, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny-Q4_0.gguf"
    return write_gguf(path, checkpoint, all_of(Type.Q4_0), tokenizer=folder)
