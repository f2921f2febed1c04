"""Comparisons of weights: to the last bit where they decide, by samples where they tell apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.checkpoint import same_weights
from gemma4_compile.checkpoint.safetensors_file import (
    TensorInfo,
    computed,
    read_header,
    read_rows,
)
from gemma4_compile.checkpoint.same_weights import holds_same, sample_hash
from gemma4_compile.errors import CheckpointError
from gemma4_compile.tiny.safetensors_file import write_safetensors

Array = npt.NDArray[np.float32]


def stored(path: Path, **values: Array) -> dict[str, TensorInfo]:
    write_safetensors(path, values, "float32")
    return read_header(path)


@pytest.mark.parametrize("size", [1, same_weights.SAMPLE_BYTES // 4, 40_000])
def test_samples_tell_weights_apart(tmp_path: Path, size: int) -> None:
    values = np.random.default_rng(3).standard_normal(size).astype(np.float32)

    def sampled(file: str, tensor: str, content: Array) -> str:
        return sample_hash(stored(tmp_path / file, **{tensor: content}).values())

    first = sampled("a", "x", values)
    assert sampled("b", "x", values) == first
    assert sampled("c", "y", values) != first
    for changed in {0, size // 2, size - 1}:
        other = values.copy()
        other[changed] += 1
        assert sampled("d", "x", other) != first


def test_a_sample_of_a_file_that_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = stored(file, x=np.zeros(4, np.float32))
    stored(file, x=np.zeros(5, np.float32))
    with pytest.raises(CheckpointError, match="changed while in use"):
        sample_hash(tensors.values())
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        sample_hash(tensors.values())


@dataclass(frozen=True)
class Scaled:
    """A decoder: a stored tensor times a number."""

    stored: TensorInfo
    scale: float

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.stored,)

    def read_rows(self, begin: int, end: int) -> Array:
        return read_rows(self.stored, begin, end) * np.float32(self.scale)


def test_a_sample_of_what_is_computed_is_of_what_is_stored(tmp_path: Path) -> None:
    (one,) = stored(tmp_path / "a", x=np.arange(12, dtype=np.float32)).values()
    both = [computed(name, (12,), Scaled(one, 2)) for name in "ab"]
    assert sample_hash(both) == sample_hash([one])


def test_computed_tensors_are_compared_by_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = 2 * values
    other[2, 3] += 1
    tensors = stored(tmp_path / "a", x=values, y=2 * values, z=other)
    twice = computed("twice", (3, 4), Scaled(tensors["x"], 2))
    monkeypatch.setattr(same_weights, "_COMPARED_BYTES", 16)  # a row at a time
    assert holds_same(twice, tensors["y"])
    assert not holds_same(tensors["z"], twice)
    assert not holds_same(twice, replace(tensors["y"], shape=(4, 3)))
