"""Shards: layout, bytes, resuming after a kill, and a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.package import shards
from gemma4_compile.package.artifacts import TensorCache
from gemma4_compile.package.output_directory import PROGRESS_FILE
from gemma4_compile.package.shards import check_shard_size, plan_shards, write_weights
from gemma4_compile.quantization.groups import GroupScheme, quantize
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.scheme import StoredTensor
from gemma4_compile.quantization.schemes import RECIPES

COLS = 64
NAMES = ("a", "b", "c", "d")
TENSORS = {
    name: np.random.default_rng(seed).standard_normal((128, COLS)).astype(np.float32)
    for seed, name in enumerate(NAMES)
}
SHARD_BYTES = 5000  # q_weight of one matrix has 4096 bytes, q_scale 512: a shard each


def read_rows(name: str, begin: int, end: int) -> np.ndarray:
    return TENSORS[name][begin:end].copy()


def make_plan(recipe: str = "q4f16") -> tuple[StoredParameter, ...]:
    shape = (128, COLS)
    table = [Parameter(name, Role.LINEAR, shape, (Source(name, shape),)) for name in NAMES]
    return storage_plan(table, RECIPES[recipe], None)


def nothing(count: int) -> None:
    assert count >= 0


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = plan_shards
    monkeypatch.setattr(shards, "plan_shards", lambda tensors, *_: real(tensors, SHARD_BYTES))


def test_a_tensor_larger_than_a_shard_may_be_is_told_with_what_would_do() -> None:
    stored = [tensor("small", 4), tensor("model.embed_tokens.q_weight", 3 << 18)]
    check_shard_size(stored, 3 << 20)
    with pytest.raises(UsageError, match=r"`model.embed_tokens.q_weight` has 3145728") as caught:
        check_shard_size(stored, (3 << 20) - 1)
    assert "--shard-size 3MiB" in str(caught.value.hint)


def test_a_size_that_is_asked_for_bounds_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "plan_shards", plan_shards)
    sizes = []
    for limit in (9000, 1 << 20):
        folder = tmp_path / str(limit)
        folder.mkdir()
        written = write_weights(folder, make_plan(), read_rows, "a", nothing, (), limit)
        assert all(shard.nbytes <= limit for shard in written.cache.shards)
        sizes.append(len(written.cache.shards))
    assert sizes == [3, 1]


def tensor(name: str, words: int) -> StoredTensor:
    return StoredTensor(name, (words,), "uint32")


def test_tensors_keep_their_order_and_fill_shards() -> None:
    shards = plan_shards([tensor(str(i), 100) for i in range(10)], 1000)
    assert [record.name for shard in shards for record in shard.records] == list("0123456789")
    assert [len(shard.records) for shard in shards] == [2, 2, 2, 2, 2]
    assert all(shard.nbytes <= 1000 for shard in shards)
    assert all(record.byte_offset % 64 == 0 for shard in shards for record in shard.records)


def test_large_tensor_has_a_shard_of_its_own() -> None:
    shards = plan_shards([tensor("s", 1), tensor("big", 1000), tensor("t", 1)], 1000)
    names = [[record.name for record in shard.records] for shard in shards]
    assert names == [["s"], ["big"], ["t"]]
    assert shards[1].nbytes == 4000


def test_shards_hold_the_quantised_tensors(tmp_path: Path) -> None:
    counts: list[int] = []
    cache = write_weights(tmp_path, make_plan(), read_rows, "f", counts.append).cache
    assert sum(counts) == 4 * (4096 + 512)
    found = {}
    for shard in cache.shards:
        data = (tmp_path / shard.file).read_bytes()
        assert len(data) == shard.nbytes
        assert hashlib.md5(data).hexdigest() == shard.md5
        for record in shard.records:
            raw = data[record.byte_offset : record.byte_offset + record.nbytes]
            found[record.name] = np.frombuffer(raw, record.dtype).reshape(record.shape)
    for name in NAMES:
        words, scales = quantize(TENSORS[name], GroupScheme(4, "float16"))
        assert np.array_equal(found[f"{name}.q_weight"], words)
        assert np.array_equal(found[f"{name}.q_scale"], scales)
    assert TensorCache.from_json(json.loads(json.dumps(cache.to_json()))) == cache


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_run(directory: Path, fingerprint: str, at: str) -> None:
    """A run that dies when it reads the tensor `at`."""

    def dying_reader(name: str, begin: int, end: int) -> np.ndarray:
        if name >= at:
            raise Killed
        return read_rows(name, begin, end)

    with pytest.raises(Killed):
        write_weights(directory, make_plan(), dying_reader, fingerprint, nothing)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("params_shard_*.bin")}


def test_killed_run_is_continued(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    resumed.mkdir()
    write_weights(whole, make_plan(), read_rows, "f", nothing)
    killed_run(resumed, "f", at="c")
    read: list[str] = []

    def counting_reader(name: str, begin: int, end: int) -> np.ndarray:
        read.append(name)
        return read_rows(name, begin, end)

    counts: list[int] = []
    write_weights(resumed, make_plan(), counting_reader, "f", counts.append)
    assert sorted(read) == ["c", "d"]
    assert sum(counts) == 4 * (4096 + 512)
    assert content(resumed) == content(whole)


@pytest.mark.parametrize("damage", ["fingerprint", "bytes", "size", "progress", "missing"])
def test_what_cannot_be_trusted_is_written_again(damage: str, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    resumed.mkdir()
    write_weights(whole, make_plan(), read_rows, "f", nothing)
    killed_run(resumed, "f", at="d")
    shard = resumed / "params_shard_0.bin"
    if damage == "bytes":
        shard.write_bytes(bytes(shard.stat().st_size))
    elif damage == "size":
        shard.write_bytes(shard.read_bytes()[:-4])
    elif damage == "progress":
        (resumed / PROGRESS_FILE).write_text('{"fingerprint": "f", "finished": 3')
    elif damage == "missing":
        shard.unlink()
    fingerprint = "other" if damage == "fingerprint" else "f"
    write_weights(resumed, make_plan(), read_rows, fingerprint, nothing)
    assert content(resumed) == content(whole)


def test_shards_of_another_plan_are_removed(tmp_path: Path) -> None:
    write_weights(tmp_path, make_plan("f32"), read_rows, "f32", nothing)
    (tmp_path / "params_shard_9.bin").write_bytes(b"of a larger model")
    cache = write_weights(tmp_path, make_plan("q4f16"), read_rows, "q4f16", nothing).cache
    assert set(content(tmp_path)) == {shard.file for shard in cache.shards}


def test_full_disk_is_found_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ArtifactError, match=r"need \d+ bytes more, 1000 are free"):
        write_weights(tmp_path, make_plan(), read_rows, "f", nothing)


def test_disk_that_fills_up_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ArtifactError, match="no space left") as caught:
        write_weights(tmp_path, make_plan(), read_rows, "f", nothing)
    assert "free some space" in str(caught.value.hint)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:1000], at))
    write_weights(tmp_path, make_plan(), read_rows, "f", nothing)
    words, scales = quantize(TENSORS["a"], GroupScheme(4, "float16"))
    assert content(tmp_path)["params_shard_0.bin"] == words.tobytes() + scales.tobytes()


def test_what_was_planted_is_no_finished_shard(victim: Path, tmp_path: Path) -> None:
    whole, planted = tmp_path / "whole", tmp_path / "planted"
    whole.mkdir()
    planted.mkdir()
    write_weights(whole, make_plan(), read_rows, "f", nothing)
    shutil.copyfile(whole / PROGRESS_FILE, planted / PROGRESS_FILE)
    shutil.copyfile(whole / "params_shard_0.bin", tmp_path / "same")
    (planted / "params_shard_0.bin").symlink_to(tmp_path / "same")
    (planted / "params_shard_1.bin").symlink_to(victim)
    os.mkfifo(planted / "params_shard_2.bin")
    write_weights(planted, make_plan(), read_rows, "f", nothing)
    assert content(planted) == content(whole)
    assert not any(path.is_symlink() for path in planted.iterdir())
