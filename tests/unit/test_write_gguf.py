"""The GGUF files with made-up weights that the peer's benchmark reads."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peer.write_gguf import (
    ALIGNMENT,
    UNROTATED,
    Kind,
    metadata,
    pools,
    shortened,
    tensors,
    write_gguf,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from tests.models import E2B_LIKE, MOE_LIKE, config_file
from tests.presets import GEMMA4

FORMATS = {4: "<I", 6: "<f", 7: "<?"}
KINDS = {kind.value[0]: kind for kind in Kind}
Header = tuple[dict[str, Any], dict[str, tuple[Kind, tuple[int, ...], int]], int]


class Reader:
    """Reads a header by the format's description, field by field."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, form: str) -> Any:
        values = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return values[0] if len(values) == 1 else values

    def text(self) -> str:
        size = self.take("<Q")
        self.place += size
        return self.data[self.place - size : self.place].decode()

    def value(self, kind: int) -> Any:
        if kind == 9:
            item, count = self.take("<IQ")
            return [self.value(item) for _ in range(count)]
        return self.text() if kind == 8 else self.take(FORMATS[kind])

    def header(self) -> Header:
        """Metadata, tensors by name, and where their data begins."""
        assert self.take("<4s") == b"GGUF"
        _, tensor_count, entry_count = self.take("<IQQ")
        entries = {self.text(): self.value(self.take("<I")) for _ in range(entry_count)}
        found = {}
        for _ in range(tensor_count):
            name = self.text()
            shape = tuple(self.take("<Q") for _ in range(self.take("<I")))
            number, offset = self.take("<IQ")
            found[name] = (KINDS[number], shape, offset)
        return entries, found, -(-self.place // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize("preset", GEMMA4)
def test_the_file_has_every_parameter_of_the_model(preset: str) -> None:
    config = Gemma4Config.from_preset(preset)
    expected = sum(prod(entry.shape) for entry in parameter_table(config))
    table = tensors(config)
    names = [tensor.name for tensor in table]
    assert len(names) == len(set(names))
    made = sum(prod(tensor.shape) for tensor in table if tensor.name != "rope_freqs.weight")
    assert made == expected


@pytest.mark.parametrize("values", [E2B_LIKE, MOE_LIKE], ids=["e2b", "moe"])
def test_header_and_sizes(values: dict[str, Any], tmp_path: Path) -> None:
    config = Gemma4Config.from_dict(config_file(values, "hub", "bfloat16"))
    size = write_gguf(tmp_path / "model.gguf", config, "made up")
    data = (tmp_path / "model.gguf").read_bytes()
    assert len(data) == size
    entries, found, begin = Reader(data).header()
    assert entries["gemma4.block_count"] == config.num_hidden_layers
    assert len(entries["gemma4.attention.head_count_kv"]) == config.num_hidden_layers
    assert entries == {
        key: float(np.float32(value)) if isinstance(value, float) else value
        for key, value in metadata(config, "made up").items()
    }
    end = 0
    for kind, shape, offset in found.values():
        assert offset == -(-end // ALIGNMENT) * ALIGNMENT
        end = offset + kind.nbytes(prod(shape))
    assert begin + -(-end // ALIGNMENT) * ALIGNMENT == size
    _, shape, offset = found["rope_freqs.weight"]
    divisors = np.frombuffer(data, "<f4", shape[0], begin + offset)
    assert set(divisors) == {np.float32(1), np.float32(UNROTATED)}


def test_scales_are_small_finite_numbers() -> None:
    scales = pools()[Kind.Q4_0].reshape(-1, 18)[:, :2].copy().view("<f2")
    assert np.isfinite(scales).all()
    assert 0.003 < np.abs(scales).min() <= np.abs(scales).max() < 0.011


def test_a_shortened_model_keeps_its_sources_of_shared_keys() -> None:
    short = shortened(Gemma4Config.from_preset("gemma-4-E2B-it"), 20, 1024)
    names = {tensor.name for tensor in tensors(short)}
    assert "blk.14.attn_k.weight" in names
    assert "blk.15.attn_k.weight" not in names
    assert metadata(short, "short")["gemma4.attention.shared_kv_layers"] == 5
