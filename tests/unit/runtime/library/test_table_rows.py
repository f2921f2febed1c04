"""Rows of a table in its shards: the right ones, of the right tensors, and none of the others."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import ChatConfig, Shard, TensorCache, TensorRecord
from gemma4_compile.package.interface import RowTable, TableSplit
from gemma4_compile.runtime.library import table_rows
from gemma4_compile.runtime.library.table_rows import TableRows, pages_of
from gemma4_compile.runtime.package.package import Package

COLUMNS, UNTOUCHED = 3, 255


def table_of(splits: list[int]) -> tuple[RowTable, dict[str, np.ndarray], list[np.ndarray]]:
    """A table in splits, its stored tensors, and the same as wholes."""
    rows = sum(splits)
    wholes = [
        np.arange(rows * COLUMNS, dtype="<u4").reshape(rows, COLUMNS),
        -np.arange(rows, dtype="<f2").reshape(rows, 1),
    ]
    stored, begin, made = {}, 0, []
    for number, count in enumerate(splits):
        names = (f"words.{number}", f"scales.{number}")
        for name, whole in zip(names, wholes, strict=True):
            stored[name] = whole[begin : begin + count]
        made.append(TableSplit(count, names))
        begin += count
    return RowTable(0, tuple(made)), stored, wholes


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_rows_by_id_whatever_the_splits(splits: list[int], data: st.DataObject) -> None:
    table, stored, wholes = table_of(splits)
    ids = np.array(
        data.draw(st.lists(st.integers(-2, sum(splits) + 2), min_size=1, max_size=20)), np.int64
    )
    found = [np.full((len(ids), *one.shape[1:]), UNTOUCHED, one.dtype) for one in wholes]

    rows = TableRows(table, stored.__getitem__)
    rows.read_ahead(ids)  # of arrays that are in no file
    rows.read(ids, found)

    for row, token in enumerate(ids):
        for one, whole in zip(found, wholes, strict=True):
            expected = whole[token] if 0 <= token < sum(splits) else UNTOUCHED
            assert (one[row] == expected).all()


def test_a_row_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, stored, _ = table_of([4, 5])
    asked: list[list[int]] = []
    monkeypatch.setattr(table_rows, "_fetch", lambda _, rows: asked.append(rows.tolist()))
    rows = TableRows(table, stored.__getitem__)
    rows.read_ahead(np.array([8, 1, -1, 1, 9], np.int64))
    rows.read_ahead(np.array([1, 5, 8], np.int64))
    assert asked == [[1], [1], [4], [4], [], [], [1], [1]], "of each split both tensors"


@pytest.mark.parametrize("damaged", ["shape", "dtype", "rows"])
def test_tensors_of_another_table_are_refused(damaged: str) -> None:
    table, stored, _ = table_of([4, 5])
    one = stored["words.1"]
    stored["words.1"] = {
        "shape": one.reshape(-1, 1),
        "dtype": one.astype("<f4"),
        "rows": one[1:],
    }[damaged]
    with pytest.raises(ArtifactError, match="table of per-layer embeddings"):
        TableRows(table, stored.__getitem__)


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def large_package(folder: Path, rows: int, width: int) -> Package:
    """A package whose table lies behind other bytes in a file that takes no room on the disk."""
    file, begin = folder / "params_shard_0.bin", 4096 + 64
    with file.open("wb") as opened:
        opened.truncate(begin + 4 * rows * width)
        for row in (0, rows // 2, rows - 1):
            opened.seek(begin + 4 * row * width)
            opened.write(np.full(width, row + 1, "<u4").tobytes())
    record = TensorRecord("table.q_weight", (rows, width), "uint32", begin)
    cache = TensorCache((Shard(file.name, file.stat().st_size, "", (record,)),), rows * width)
    chat = ChatConfig("gemma4", "q4f16_1", rows, 64, 16, (), {})
    return Package(folder, folder / "none", "cpu", "cpu", chat, cache)


@settings(deadline=None)
@given(
    begin=st.integers(0, 5 * mmap.PAGESIZE),
    row_bytes=st.integers(1, 3 * mmap.PAGESIZE),
    rows=st.lists(st.integers(0, 9), max_size=5),
)
def test_what_is_fetched_ahead_are_the_pages_of_the_rows(
    begin: int, row_bytes: int, rows: list[int]
) -> None:
    found: set[int] = set()
    for first, count in pages_of(begin, row_bytes, np.array(rows, np.int64)):
        assert first % mmap.PAGESIZE == 0
        found.update(range(first // mmap.PAGESIZE, (first + count - 1) // mmap.PAGESIZE + 1))
    expected = {
        byte // mmap.PAGESIZE
        for row in rows
        for byte in range(begin + row * row_bytes, begin + (row + 1) * row_bytes)
    }
    assert found == expected


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc/self/statm")
def test_the_table_takes_none_of_the_hosts_memory(tmp_path: Path) -> None:
    rows, width = 60_000, 1120
    package = large_package(tmp_path, rows, width)
    table = RowTable(0, (TableSplit(rows, ("table.q_weight",)),))
    ids = np.array([0, rows // 2, rows - 1, 7], np.int64)
    found = [np.empty((4, width), np.uint32)]
    before = resident_bytes()
    read = TableRows(table, package.map_weight)
    read.read_ahead(np.array([-1, 3, 3, rows - 1, rows], np.int64))
    read.read(ids, found)
    grown = resident_bytes() - before
    assert found[0][:, 0].tolist() == [1, rows // 2 + 1, rows, 0]
    assert grown < 4 << 20, "of 256 MiB the pages around four rows"


def test_a_shard_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    package = large_package(tmp_path, 100, 64)
    with (tmp_path / "params_shard_0.bin").open("r+b") as file:
        file.truncate(1000)
    table = RowTable(0, (TableSplit(100, ("table.q_weight",)),))
    with pytest.raises(ArtifactError, match="expected 29760 bytes, found 1000"):
        TableRows(table, package.map_weight)
