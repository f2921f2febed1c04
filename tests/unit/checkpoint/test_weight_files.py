"""Shards wherever the index lists them, and nowhere else; damaged indices are in test_match.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import Checkpoint, row_reader
from gemma4_compile.checkpoint.weight_files import open_tensors
from gemma4_compile.errors import CheckpointError
from gemma4_compile.tiny.safetensors_file import write_safetensors
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
    names = ("deep.er/weights_{}.safetensors", "modèle+{} (epoch=3,step@[2]).safetensors")
    moved = {}
    for index, file in enumerate(sorted(set(weight_map.values()))):
        moved[file] = f"part {index}/{names[index % 2].format(index)}"
        (directory / moved[file]).parent.mkdir(parents=True)
        (directory / file).rename(directory / moved[file])
    write_index(directory, {name: moved[file] for name, file in weight_map.items()})
    read = row_reader(matched(Checkpoint.open(directory)))
    assert all(np.array_equal(read(name, 0, 1), rows) for name, rows in whole.items())


def test_a_tensor_in_two_shards_is_read_where_they_agree(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = [f"model-{i}.safetensors" for i in (1, 2)]
    write_safetensors(tmp_path / files[0], {"a": rows, "b": rows}, "float32")
    write_index(tmp_path, {"a": files[0], "b": files[1]})
    write_safetensors(tmp_path / files[1], {"b": rows}, "float32")
    found = open_tensors(tmp_path)
    assert found.keys() == {"a", "b"}
    write_safetensors(tmp_path / files[1], {"b": rows + 1}, "float32")
    with pytest.raises(CheckpointError, match=r"`b` is in .* with different values") as raised:
        open_tensors(tmp_path)
    assert raised.value.hint


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
