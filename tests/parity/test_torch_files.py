"""Files of torch.save are refused with a command, which makes of them what is read."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError
from tests import models

pytestmark = pytest.mark.parity


def command_of(error: CheckpointError) -> list[str]:
    """The command of the hint, for the Python of this test."""
    found = re.search(r"`(python .+)`$", str(error.hint), re.DOTALL)
    assert found is not None
    return [sys.executable, *shlex.split(found[1])[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "is_zip"), [(1, True), (3, True), (1, False)])
def test_the_command_of_the_error_makes_what_is_read(
    shards: int, is_zip: bool, tmp_path: Path
) -> None:
    text = models.DENSE_LIKE
    path = models.write_checkpoint(tmp_path, text).path
    (path / "model.safetensors").unlink()
    weights = {
        models.tensor_name(name): torch.from_numpy(np.array(values))
        for name, values in models.random_weights(text).items()
    }
    weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"]
    names = list(weights)
    for i in range(shards):
        of_all = f"-{i + 1:05d}-of-{shards:05d}" if shards > 1 else ""
        part = {name: weights[name] for name in names[i::shards]}
        file = path / f"pytorch_model{of_all}.bin"
        torch.save(part, file, _use_new_zipfile_serialization=is_zip)
    if shards > 1:
        (path / "pytorch_model.bin.index.json").write_text("{}")
    with (
        pytest.raises(CheckpointError, match="pickle") as error,
        open_source(str(path), None, weights=True),
    ):
        pass
    subprocess.run(command_of(error.value), cwd=path, check=True, timeout=300)
    with open_source(str(path), None, weights=True) as source:
        assert source.checkpoint is not None
        matched = match(source.checkpoint.tensors, source.config)
        for name, values in models.random_weights(text).items():
            rows = row_reader(matched)(name, 0, matched[name].row_count)
            np.testing.assert_array_equal(rows.reshape(values.shape), values)


def test_a_file_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (Path(tmp_path / "ran"),)

    torch.save({"x": Evil()}, tmp_path / "pytorch_model.bin")
    models.write_checkpoint(tmp_path, models.DENSE_LIKE)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as error, open_source(str(tmp_path), None, weights=True):
        pass
    ran = subprocess.run(command_of(error.value), cwd=tmp_path, capture_output=True, timeout=300)
    assert ran.returncode != 0
    assert b"Weights only load failed" in ran.stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_an_adapter_of_torch_too(tmp_path: Path) -> None:
    base = models.write_checkpoint(tmp_path / "base", models.DENSE_LIKE).path
    module = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    pair = {"lora_A": torch.ones(4, 96), "lora_B": torch.ones(256, 4)}
    torch.save({f"{module}.{n}.weight": t for n, t in pair.items()}, adapter / "adapter_model.bin")

    def opened() -> None:
        with open_source(str(base), None, weights=True, adapters=(str(adapter),)):
            pass

    with pytest.raises(CheckpointError, match=r"adapter_model\.bin") as error:
        opened()
    subprocess.run(command_of(error.value), cwd=adapter, check=True, timeout=300)
    opened()
