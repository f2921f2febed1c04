"""Headers of GGUF: every kind of damage is refused in bounded time and memory, without a trace."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from gemma4_compile.checkpoint.gguf import header, types
from gemma4_compile.checkpoint.gguf.header import read_header
from gemma4_compile.errors import CheckpointError, UsageError

KEYS = 2
F32, Q4_0 = 0, 2


def text(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def tensor(name: str, shape: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def file(
    keys: bytes = b"",
    tensors: bytes = b"",
    data: int = 0,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    count = (tensors.count(b"weight"), keys.count(b"key")) if counts is None else counts
    head = b"GGUF" + struct.pack("<IQQ", version, *count) + keys + tensors
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(data)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text("key.a") + struct.pack("<IIQ", 9, kind, count) + content


def string(value: bytes) -> bytes:
    return text("key.s") + struct.pack("<I", 8) + value


HUGE = 1 << 62
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file ends in it"),
    "three bytes": (b"GGU", "the file ends in it"),
    "another format": (b"NOPE" + bytes(100), "does not begin with `GGUF`"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "the other order of bytes": (
        b"GGUF" + struct.pack(">I", 3) + bytes(64),
        "other order of bytes",
    ),
    "version 1": (file(version=1), "version 1 of the format"),
    "a truncated header": (file(tensors=tensor("a.weight", (8,)), data=32)[:40], "ends in it"),
    "very many tensors": (file(counts=(HUGE, 0)), "tensors and"),
    "very many keys": (file(counts=(0, HUGE)), "keys"),
    "more keys than there are": (file(counts=(0, 5)), "a name of 0 bytes|ends in it"),
    "a long name": (file(struct.pack("<Q", HUGE), counts=(0, 1)), "a name of"),
    "a text of 4 EB": (file(string(struct.pack("<Q", HUGE))), "more than"),
    "a text of 4 GB": (file(string(struct.pack("<Q", 1 << 32))), "more than"),
    "a text beyond the end": (file(string(struct.pack("<Q", 1 << 20))), "ends in it"),
    "a text that is none": (file(string(text(b"\xff\xfe"))), "not UTF-8"),
    "an array of 2^62": (file(array(5, HUGE)), "more than"),
    "an array of 2^62 texts": (file(array(8, HUGE)), "arrays of more than"),
    "an array in an array": (file(array(9, 1, bytes(12))), "unknown type 9"),
    "an unknown type of value": (file(text("key") + struct.pack("<I", 77)), "unknown type 77"),
    "a key twice": (file(2 * (text("key") + struct.pack("<IB", 7, 1))), "`key` is there twice"),
    "an odd alignment": (
        file(text("general.alignment") + struct.pack("<II", 4, 24), counts=(0, 1)),
        "alignment",
    ),
    "alignment as a text": (
        file(text("general.alignment") + struct.pack("<I", 8) + text("32"), counts=(0, 1)),
        "alignment",
    ),
    "no dimensions": (file(tensors=tensor("a.weight", ())), "0 dimensions"),
    "very many dimensions": (
        file(tensors=text("a.weight") + struct.pack("<I", 1 << 31)),
        "dimensions",
    ),
    "an axis of 0": (file(tensors=tensor("a.weight", (0, 4))), "has shape"),
    "an axis of 2^62": (file(tensors=tensor("a.weight", (HUGE, 4))), "has shape"),
    "axes whose product overflows": (
        file(tensors=tensor("a.weight", (1 << 39, 1 << 39, 1 << 39))),
        "is truncated",
    ),
    "an unknown type": (file(tensors=tensor("a.weight", (32,), 999)), "the unknown type 999"),
    "half a block": (file(tensors=tensor("a.weight", (48, 2), Q4_0)), "rows of 48 elements"),
    "an offset between": (file(tensors=tensor("a.weight", (8,), offset=7)), "begins at 7"),
    "an offset beyond the end": (
        file(tensors=tensor("a.weight", (8,), offset=1 << 40), data=32),
        "is truncated",
    ),
    "truncated data": (file(tensors=tensor("a.weight", (64,)), data=128), "is truncated"),
    "two in one place": (
        file(tensors=tensor("a.weight", (8,)) + tensor("b.weight", (8,)), data=64),
        "overlaps another",
    ),
    "a name twice": (
        file(tensors=tensor("a.weight", (8,)) + tensor("a.weight", (8,), offset=32), data=64),
        "is there twice",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_within_little_memory(name: str, tmp_path: Path) -> None:
    content, message = DAMAGED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    types.package()  # it is not what is measured
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.hint


def test_a_header_without_an_end_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 1 << 16)
    path = tmp_path / "model.gguf"
    path.write_bytes(file(array(8, 100_000, 100_000 * text("abc"))))
    with pytest.raises(CheckpointError, match="more than 65536 bytes"):
        read_header(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="cannot read"):
            read_header(path)


def written(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "gemma4")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_reads_what_the_package_reads(tmp_path: Path) -> None:
    """Next to the package's own reader, on a file of its own writer, with blocks of every size."""
    draw = np.random.default_rng(0)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(64)
        writer.add_uint8("a.u8", 200)
        writer.add_int8("a.i8", -100)
        writer.add_int16("a.i16", -30_000)
        writer.add_uint64("a.u64", 1 << 63)
        writer.add_int64("a.i64", -(1 << 62))
        writer.add_float32("a.f32", 1e-6)
        writer.add_float64("a.f64", 1e-300)
        writer.add_bool("a.bool", True)
        writer.add_string("a.string", "▁Ġ é\n")
        writer.add_array("a.texts", ["", "a b", "\u2581"])
        writer.add_array("a.integers", [1, -2, 3])
        writer.add_array("a.floats", [0.5, -1.5])
        writer.add_array("a.flags", [True, False])
        values = draw.standard_normal((3, 2, 256)).astype(np.float32)
        writer.add_tensor("a.weight", values)
        writer.add_tensor("b.weight", values.astype(np.float16))
        for kind in ("Q8_0", "Q4_0", "Q5_1", "BF16"):
            stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(f"{kind}.weight", stored, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.add_tensor("c.weight", np.ones(3, np.float32))

    path = written(tmp_path / "model.gguf", fill)
    found, expected = read_header(path), gguf.GGUFReader(path)
    for name, field in expected.fields.items():
        if not name.startswith("GGUF."):
            value = found.metadata[name]
            value = value.tolist() if isinstance(value, np.ndarray) else value
            assert value == field.contents(), name
    assert [*found.tensors] == [one.name for one in expected.tensors]
    for one in expected.tensors:
        entry = found.tensors[one.name]
        assert entry.type.name == one.tensor_type.name
        assert entry.shape == tuple(reversed(one.shape.tolist()))
        assert (entry.offset_bytes, entry.nbytes) == (one.data_offset, one.n_bytes)


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    path = tmp_path / "model.gguf"
    path.write_bytes(file(tensors=tensor("a.weight", (8,)), data=32))
    with pytest.raises(UsageError, match="needs the package gguf") as caught:
        read_header(path)
    assert "gemma4-compile[gguf]" in str(caught.value.hint)
