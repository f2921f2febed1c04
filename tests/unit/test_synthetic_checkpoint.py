"""The made-up checkpoints that benchmarks convert."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.synthetic_checkpoint import (
    TABLE_SIZE,
    SyntheticCheckpoint,
    config_json,
    write_checkpoint,
)
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from tests.models import E2B_LIKE, MOE_LIKE, config_file


def of_preset(preset: str) -> SyntheticCheckpoint:
    return SyntheticCheckpoint(Gemma4Config.from_dict(config_json(preset)))


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("gemma-4-31B-it", 30_697_345_340), ("gemma-4-26B-A4B-it", 25_233_141_790)],
)
def test_it_has_as_many_bytes_as_the_real_one(preset: str, parameters: int) -> None:
    assert of_preset(preset).nbytes() == 2 * parameters


@pytest.mark.parametrize("name", ["layers.3.mlp.down_proj.weight", "embed_tokens.weight"])
def test_a_row_is_the_same_however_it_is_read(name: str) -> None:
    checkpoint = of_preset("gemma-4-31B-it")
    width = checkpoint.sources[name].shape[1]
    around = TABLE_SIZE // width  # rows whose values begin a new turn of the table
    whole = checkpoint.read_rows(name, around - 3, around + 3)
    pieces = [checkpoint.read_rows(name, around + i, around + i + 1) for i in range(-3, 3)]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert not np.array_equal(whole[0], whole[5])


def test_values_are_of_a_size_that_keeps_a_model_finite() -> None:
    checkpoint = of_preset("gemma-4-26B-A4B-it")
    for name, source in checkpoint.sources.items():
        if not name.startswith(("layers.7.", "norm", "embed")):
            continue
        values = checkpoint.read_rows(name, 0, min(64, source.shape[0]))
        assert np.isfinite(values).all()
        if "norm" in name or name.endswith(("scale", "scalar")):
            assert ((values >= 1) & (values < 1.25)).all()
        elif "embed" in name:
            assert 0.4 < values.std() < 0.6
        else:
            assert 0.7 < values.std() * source.shape[-1] ** 0.5 < 1.5


@pytest.mark.parametrize("text", [E2B_LIKE, MOE_LIKE], ids=["e2b", "moe"])
def test_a_written_checkpoint_is_read_like_a_real_one(
    text: dict[str, object], tmp_path: Path
) -> None:
    values = config_file(text, "hub", "bfloat16")
    write_checkpoint(tmp_path, values)
    config = Gemma4Config.from_dict(values)
    read_rows = row_reader(match(Checkpoint.open(tmp_path).tensors, config))
    synthetic = SyntheticCheckpoint(config)
    for name, source in synthetic.sources.items():
        rows = int(np.prod(source.shape[:-1])) if len(source.shape) > 1 else source.shape[0]
        assert np.array_equal(read_rows(name, 0, rows), synthetic.read_rows(name, 0, rows))
