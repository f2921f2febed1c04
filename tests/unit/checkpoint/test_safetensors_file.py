"""Safetensors files: exact values, and every kind of damage refused before anything is read."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint import safetensors_file
from gemma4_compile.checkpoint.safetensors_file import (
    TensorInfo,
    check_unchanged,
    computed,
    read_header,
    read_rows,
    read_stored,
    rows_of,
)
from gemma4_compile.errors import CheckpointError


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_every_float_dtype_is_widened_exactly(file: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0078125, 3.0]], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype("<u2")
    data = values.astype("<f4").tobytes() + values.astype("<f2").tobytes() + bf16.tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 2], 0, 16),
        "b": entry("F16", [2, 2], 16, 24),
        "c": entry("BF16", [2, 2], 24, 32),
    }
    tensors = read_header(write(file, header, data))
    assert set(tensors) == {"a", "b", "c"}
    for tensor in tensors.values():
        rows = read_rows(tensor, 0, 2)
        assert rows.dtype == np.float32
        assert np.array_equal(rows, values)
        assert np.array_equal(read_rows(tensor, 1, 2), values[1:])
        assert read_rows(tensor, 1, 1).shape == (0, 2)


def test_bfloat16_special_values_are_kept(file: Path) -> None:
    bits = np.array([0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8000], "<u2")
    tensors = read_header(write(file, {"x": entry("BF16", [5], 0, 10)}, bits.tobytes()))
    rows = read_rows(tensors["x"], 0, 5)
    assert np.array_equal(rows.view(np.uint32) >> 16, bits)


def test_rows_of_a_vector_are_elements(file: Path) -> None:
    values = np.arange(5, dtype="<f4")
    tensors = read_header(write(file, {"x": entry("F32", [5], 0, 20)}, values.tobytes()))
    assert read_rows(tensors["x"], 2, 4).tolist() == [2, 3]


def test_rows_of_a_stack_are_those_of_its_matrices(file: Path) -> None:
    values = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    tensors = read_header(write(file, {"x": entry("F32", [2, 3, 4], 0, 96)}, values.tobytes()))
    rows = read_rows(tensors["x"], 2, 5)
    assert np.array_equal(rows, values.reshape(6, 4)[2:5])


DAMAGED: dict[str, tuple[object, bytes, str]] = {
    "truncated data": ({"x": entry("F32", [4], 0, 16)}, bytes(12), "is truncated"),
    "trailing bytes": ({"x": entry("F32", [4], 0, 16)}, bytes(20), "trailing bytes"),
    "wrong size": ({"x": entry("F32", [5], 0, 16)}, bytes(16), "needs 20 bytes"),
    "overlap": (
        {"x": entry("F32", [4], 0, 16), "y": entry("F32", [4], 8, 24)},
        bytes(24),
        "`y` .* overlaps",
    ),
    "gap": ({"x": entry("F32", [4], 8, 24)}, bytes(24), "leaves a gap"),
    "negative offset": ({"x": entry("F32", [4], -16, 0)}, bytes(16), "offsets are damaged"),
    "huge shape": ({"x": entry("F32", [2**62, 2**62], 0, 16)}, bytes(16), "needs"),
    "negative shape": ({"x": entry("F32", [-4], 0, 16)}, bytes(16), "shape is damaged"),
    "boolean shape": ({"x": entry("F32", [True], 0, 4)}, bytes(4), "shape is damaged"),
    "float shape": ({"x": entry("F32", [4.0], 0, 16)}, bytes(16), "shape is damaged"),
    "unknown dtype": ({"x": entry("Q4", [4], 0, 16)}, bytes(16), "unknown dtype 'Q4'"),
    "entry without shape": ({"x": {"dtype": "F32"}}, b"", "entry is damaged"),
    "entry is no object": ({"x": 3}, b"", "entry is damaged"),
    "key twice": (
        b'{"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        b'"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
        b"",
        "twice",
    ),
    "not JSON": (b"{nonsense}", b"", "header of .* is damaged"),
    "not an object": (b"[1, 2]", b"", "does not begin"),
    "deep nesting": (b"[" * 100_000, b"", "damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused(name: str, file: Path) -> None:
    header, data, message = DAMAGED[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(write(file, header, data))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"abc", "it ends after 3 bytes"),
        (bytes(8), "it ends after 8 bytes"),
        (bytes(16), "should have 0 bytes"),
        ((10**15).to_bytes(8, "little") + b"{}", f"should have {10**15} bytes"),
        (b"\xff" * 64, f"should have {2**64 - 1} bytes"),
    ],
)
def test_file_that_is_no_safetensors(content: bytes, why: str, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"`model\.safetensors` is no safetensors file, .*{why}"
    ):
        read_header(file)


def test_missing_file(file: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read `model\.safetensors`"):
        read_header(file)


def test_file_that_shrinks_while_in_use(file: Path) -> None:
    tensors = read_header(write(file, {"x": entry("F32", [4, 4], 0, 64)}, bytes(64)))
    with file.open("r+b") as open_file:
        open_file.truncate(file.stat().st_size - 32)
    with pytest.raises(CheckpointError, match="changed while in use"):
        read_rows(tensors["x"], 0, 2)
    unknown = replace(tensors["x"], stamp=None)
    assert read_rows(unknown, 0, 2).shape == (2, 4)
    with pytest.raises(CheckpointError, match="ended inside tensor `x`"):
        read_rows(unknown, 0, 4)
    assert read_stored(unknown, 0, 2, (1, 3)).shape == (2, 2)
    with pytest.raises(CheckpointError, match="ended inside tensor `x`"):
        read_stored(unknown, 0, 4, (1, 3))


def test_file_that_is_written_to_or_replaced_while_in_use(file: Path, tmp_path: Path) -> None:
    tensors = read_header(write(file, {"x": entry("F32", [4], 0, 16)}, bytes(16)))
    check_unchanged(tensors.values())
    before = file.stat()
    with file.open("r+b") as open_file:
        open_file.seek(-16, os.SEEK_END)
        open_file.write(b"\1" * 16)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed while in use"):
        read_rows(tensors["x"], 0, 4)
    with pytest.raises(CheckpointError, match="changed while in use"):
        check_unchanged(tensors.values())

    tensors = read_header(file)
    shutil.copy2(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    with pytest.raises(CheckpointError, match="changed while in use"):
        check_unchanged(tensors.values())
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        check_unchanged(tensors.values())


def test_number_of_tensors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    write(file, {str(index): entry("U8", [0], 0, 0) for index in range(count)}, b"")
    assert len(read_header(file)) == count
    monkeypatch.setattr(safetensors_file, "MAX_TENSORS", count - 1)
    with pytest.raises(CheckpointError, match=f"lists {count} tensors"):
        read_header(file)


def test_bytes_are_no_weights(file: Path) -> None:
    tensors: dict[str, TensorInfo] = read_header(
        write(file, {"x": entry("U8", [2], 0, 2)}, bytes(2))
    )
    with pytest.raises(CheckpointError, match="dtype U8"):
        read_rows(tensors["x"], 0, 2)


@pytest.mark.parametrize("dtype", ["I32", "I64"])
def test_token_ids_are_read_as_they_are(dtype: str, file: Path) -> None:
    ids = np.array([0, 262_143, 5, -1], f"<i{int(dtype[1:]) // 8}")
    header = {"x": entry(dtype, [4], 0, ids.nbytes)}
    tensors = read_header(write(file, header, ids.tobytes()))
    assert read_rows(tensors["x"], 1, 4).tolist() == [262_143, 5, -1]


def write_header(path: Path, header: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"__metadata__": {"a": "' + b"x" * (33 << 20) + b'"}}', "too large"),
        (b'{"__metadata__": {"a": [' + b"{}," * 2_000_000 + b"0]}}", "more than 3200000 values"),
        ("{}".encode("utf-16-le"), "damaged"),
        ("{ }".encode("utf-16"), "does not begin"),
        (b"\xef\xbb\xbf{}", "does not begin"),
        (b" {}", "does not begin"),
        (b'{"\xff": {}}', "damaged"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_headers_that_cost_too_much_or_are_no_utf8(
    header: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_header(write_header(tmp_path / "x.safetensors", header))


@dataclass(frozen=True)
class Scaled:
    """A decoder: a stored tensor times a number."""

    stored: TensorInfo
    scale: float

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.stored,)

    def read_rows(self, begin: int, end: int) -> np.ndarray:
        return read_rows(self.stored, begin, end) * np.float32(self.scale)


def test_a_computed_tensor_is_read_by_rows(file: Path) -> None:
    values = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    header = {"x": entry("F32", [2, 3, 4], 0, 96)}
    stored = read_header(write(file, header, values.tobytes()))["x"]
    tensor = computed("twice", stored.shape, Scaled(stored, 2))
    assert (tensor.dtype, tensor.path, tensor.stored) == ("F32", file, (stored,))
    assert tensor.leaves == (tensor,)
    assert np.array_equal(read_rows(tensor, 2, 5), 2 * values.reshape(6, 4)[2:5])
    second = rows_of(rows_of(tensor, 3, 6), 1, 3)
    assert second.shape == (2, 4)
    assert np.array_equal(read_rows(second, 0, 2), 2 * values[1, 1:])
    both = replace(stored, name="both", shape=(4, 4), parts=(rows_of(stored, 0, 2), second))
    assert both.leaves == (both.parts[0], second)
    assert np.array_equal(read_rows(both, 1, 3), [values[0, 1], 2 * values[1, 1]])


def test_computed_tensors_change_with_what_they_are_computed_from(file: Path) -> None:
    values = np.arange(12, dtype="<f4")
    header = {"x": entry("F32", [12], 0, 48)}
    stored = read_header(write(file, header, values.tobytes()))["x"]
    tensors = [computed(name, (12,), Scaled(stored, 2)) for name in "ab"]
    check_unchanged(tensors)
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(CheckpointError, match="changed while in use"):
        check_unchanged(tensors)


@pytest.mark.parametrize("dtype", ["I32", "U8", "F16", "BF16"])
def test_columns_are_read_as_they_are_stored(dtype: str, file: Path) -> None:
    as_stored = {"I32": "<i4", "U8": "u1", "F16": "<f2", "BF16": "<u2"}[dtype]
    values = np.arange(12).astype(as_stored).reshape(3, 4)
    header = {"x": entry(dtype, [3, 4], 0, values.nbytes)}
    stored = read_header(write(file, header, values.tobytes()))["x"]
    assert np.array_equal(read_stored(stored, 1, 3), values[1:])
    assert np.array_equal(read_stored(stored, 0, 3, (1, 3)), values[:, 1:3])
    assert read_stored(stored, 0, 3, (2, 2)).shape == (3, 0)
