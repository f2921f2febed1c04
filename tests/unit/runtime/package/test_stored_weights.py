"""Weights in their shards: mapped, read in pieces, and files that are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Shard, TensorRecord
from gemma4_compile.runtime.package.stored_weights import open_shard

VALUES = {"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.arange(5, dtype="<f2")}
BEGINS = {"a": 0, "b": 64}
FILE = "params_shard_0.bin"


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    content = bytearray(BEGINS["b"] + VALUES["b"].nbytes)
    for name, values in VALUES.items():
        content[BEGINS[name] : BEGINS[name] + values.nbytes] = values.tobytes()
    (tmp_path / FILE).write_bytes(content)
    records = (
        TensorRecord(name, values.shape, values.dtype.name, BEGINS[name])
        for name, values in VALUES.items()
    )
    return Shard(FILE, len(content), "", tuple(records))


def test_a_mapped_weight_outlives_its_shard(tmp_path: Path, shard: Shard) -> None:
    with open_shard(tmp_path, shard) as weights:
        found = {name: weight.mapped() for name, weight in weights.items()}
    assert list(found) == list(VALUES)
    for name, values in VALUES.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


def test_what_is_written_to_a_mapped_weight_stays_out_of_the_file(
    tmp_path: Path, shard: Shard
) -> None:
    before = (tmp_path / FILE).read_bytes()
    with open_shard(tmp_path, shard) as weights:
        weights["a"].mapped()[...] = 7
    assert (tmp_path / FILE).read_bytes() == before


def test_all_weights_of_a_shard_share_one_open_file(tmp_path: Path, shard: Shard) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc/self/fd")
    before = open_files()
    with open_shard(tmp_path, shard) as weights:
        kept = [weights[name].mapped() for name in ("a", "b", "a", "b")]
    assert open_files() == before + 1
    del kept, weights
    assert open_files() == before


@pytest.mark.parametrize("begin", [0, 4, 20])
def test_a_piece_is_read_from_where_it_lies(tmp_path: Path, shard: Shard, begin: int) -> None:
    memory = bytearray(4)
    with open_shard(tmp_path, shard) as weights:
        weights["a"].read_into(memoryview(memory), begin)
    assert bytes(memory) == VALUES["a"].tobytes()[begin : begin + 4]


@pytest.mark.parametrize("size", [0, 1, 73, 75, 4096])
def test_a_shard_of_another_size_is_refused(tmp_path: Path, shard: Shard, size: int) -> None:
    os.truncate(tmp_path / FILE, size)
    with pytest.raises(ArtifactError, match=f"expected 74 bytes, found {size}"):
        open_shard(tmp_path, shard).__enter__()


def test_a_shard_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path, shard: Shard) -> None:
    with open_shard(tmp_path, shard) as weights:
        os.truncate(tmp_path / FILE, 70)
        with pytest.raises(ArtifactError, match="ended while it was read: expected 10 bytes"):
            weights["b"].read_into(memoryview(bytearray(10)), 0)


def test_a_shard_that_grows_while_it_is_read_is_read_as_it_was(
    tmp_path: Path, shard: Shard
) -> None:
    memory = bytearray(10)
    with open_shard(tmp_path, shard) as weights:
        with (tmp_path / FILE).open("ab") as file:
            file.write(b"more")
        weights["b"].read_into(memoryview(memory), 0)
    assert bytes(memory) == VALUES["b"].tobytes()


def test_what_is_no_file_is_refused(tmp_path: Path, shard: Shard) -> None:
    (tmp_path / FILE).unlink()
    with pytest.raises(ArtifactError, match="cannot read the weight shard"):
        open_shard(tmp_path, shard).__enter__()
    (tmp_path / FILE).mkdir()
    with pytest.raises(ArtifactError, match="no regular file, but a directory"):
        open_shard(tmp_path, shard).__enter__()
