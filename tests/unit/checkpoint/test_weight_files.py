"""Shards wherever the index lists them, and nowhere else; damaged indices are in test_match.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import Checkpoint, row_reader
from gemma4_compile.errors import CheckpointError
from tests.models import E2B_LIKE, write_checkpoint
from tests.unit.checkpoint.test_match import matched, split_into_shards, write_index


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", E2B_LIKE, dtype="bfloat16").path


def test_shards_have_any_name_and_folder_that_the_index_lists(directory: Path) -> None:
    """As transformers reads them."""
    read = row_reader(matched(Checkpoint.open(directory)))
    whole = {name: read(name, 0, 1) for name in matched(Checkpoint.open(directory))}
    weight_map = split_into_shards(directory)
    moved = {}
    for index, file in enumerate(sorted(set(weight_map.values()))):
        moved[file] = f"part {index}/deep.er/weights_{index}.safetensors"
        (directory / moved[file]).parent.mkdir(parents=True)
        (directory / file).rename(directory / moved[file])
    write_index(directory, {name: moved[file] for name, file in weight_map.items()})
    read = row_reader(matched(Checkpoint.open(directory)))
    assert all(np.array_equal(read(name, 0, 1), rows) for name, rows in whole.items())


def test_a_shard_in_a_folder_is_no_link_out_of_the_checkpoint(
    directory: Path, tmp_path: Path
) -> None:
    weight_map = split_into_shards(directory)
    file = next(iter(weight_map.values()))
    (tmp_path / "elsewhere").mkdir()
    (directory / file).rename(tmp_path / "elsewhere" / file)
    (directory / "in").symlink_to(tmp_path / "elsewhere")
    write_index(directory, {n: f"in/{file}" if f == file else f for n, f in weight_map.items()})
    with pytest.raises(CheckpointError, match="a link that leads out of"):
        Checkpoint.open(directory)
