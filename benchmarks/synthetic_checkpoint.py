"""Checkpoints of released sizes with made-up weights, in memory or on disk.

Names, shapes and dtype are those of the real ones; values are cheap: one table of normally
distributed bfloat16 numbers, read from a place of its own for each tensor, times a power of two. So
a row never has to be stored, and 31B takes no 62 GB of disk. A model with these weights computes
finite numbers; it writes nothing of sense.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.config.gemma4 import PRESETS_DIR, Gemma4Config
from gemma4_compile.model_spec.parameters import Source
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file

Float32Array = npt.NDArray[np.float32]
UInt16Array = npt.NDArray[np.uint16]

PREFIX = "model.language_model."
TABLE_SIZE = 4_194_301  # a prime, so that rows of any width begin at ever new places
_BLOCK_ELEMENTS = 1 << 23
_BFLOAT16_ONE = 0x3F80


class SyntheticCheckpoint:
    """The tensors of a text model.

    `read_rows` is what `gemma4_compile.checkpoint.match.row_reader` gives for a real checkpoint.
    """

    def __init__(self, config: Gemma4Config) -> None:
        self.sources: dict[str, Source] = {
            source.name: source for entry in parameter_table(config) for source in entry.sources
        }
        normal = np.random.default_rng(0).standard_normal(TABLE_SIZE, np.float32)
        # Twice, so that a run of up to TABLE_SIZE elements is one slice.
        self._table = np.tile((normal.view(np.uint32) >> 16).astype(np.uint16), 2)

    def read_bits(self, name: str, begin: int, end: int) -> UInt16Array:
        """Elements [begin, end) of a tensor, in row-major order, as bfloat16 bits."""
        bits = np.empty(end - begin, np.uint16)
        place = (zlib.crc32(name.encode()) + begin) % TABLE_SIZE
        for first in range(0, len(bits), TABLE_SIZE):
            run = min(TABLE_SIZE, len(bits) - first)
            bits[first : first + run] = self._table[place : place + run]
        exponent = _exponent(name, self.sources[name].shape)
        if exponent:
            bits += np.uint16((exponent << 7) & 0xFFFF)  # no table value is small enough to wrap
        if "norm" in name or name.endswith(("scale", "scalar")):
            return _near_one(bits)
        return bits

    def read_rows(self, name: str, begin: int, end: int) -> Float32Array:
        """Rows [begin, end) of a tensor (elements, of a vector), widened to float32."""
        shape = self.sources[name].shape
        width = shape[-1] if len(shape) > 1 else 1
        bits = self.read_bits(name, begin * width, end * width).astype(np.uint32)
        bits <<= 16
        values = bits.view(np.float32)
        return values.reshape(end - begin, width) if len(shape) > 1 else values

    def nbytes(self) -> int:
        """Size of all tensors as the checkpoint stores them."""
        return 2 * sum(prod(source.shape) for source in self.sources.values())


def _exponent(name: str, shape: tuple[int, ...]) -> int:
    """Power of two that the table is multiplied by: about 1 / sqrt(inputs) for a matrix."""
    if len(shape) == 1 or "embed_tokens" in name:
        return -1
    return -round(np.log2(shape[-1]) / 2)


def _near_one(bits: UInt16Array) -> UInt16Array:
    """1 to 1.25, from the low bits of the mantissa."""
    return (bits & np.uint16(0x1F)) | np.uint16(_BFLOAT16_ONE)


def config_json(preset: str) -> dict[str, object]:
    """The `config.json` of a released size."""
    values: dict[str, object] = json.loads((PRESETS_DIR / f"{preset}.json").read_text("utf-8"))
    return values


def write_checkpoint(directory: Path, config: Mapping[str, object]) -> None:
    """Write a whole checkpoint of a model, its tokenizer being that of `tiny`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes(shipped_file(name))
    checkpoint = SyntheticCheckpoint(Gemma4Config.from_dict(config))
    write_tensors(directory / "model.safetensors", checkpoint, checkpoint.sources.values())


def write_tensors(path: Path, checkpoint: SyntheticCheckpoint, sources: Iterable[Source]) -> None:
    """Write some tensors into one safetensors file, block by block."""
    header: dict[str, object] = {}
    ordered = list(sources)
    position = 0
    for source in ordered:
        nbytes = 2 * prod(source.shape)
        header[PREFIX + source.name] = {
            "dtype": "BF16",
            "shape": list(source.shape),
            "data_offsets": [position, position + nbytes],
        }
        position += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for source in ordered:
            count = prod(source.shape)
            for begin in range(0, count, _BLOCK_ELEMENTS):
                end = min(begin + _BLOCK_ELEMENTS, count)
                file.write(checkpoint.read_bits(source.name, begin, end).astype("<u2").data)
