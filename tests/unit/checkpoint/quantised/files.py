"""Quantised tensors for the tests, written from integers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile.checkpoint.safetensors_file import TensorInfo, read_header

Array = npt.NDArray[Any]
_DTYPES = {"i4": "I32", "i8": "I64", "f4": "F32", "f2": "F16", "u1": "U8", "i1": "I8"}


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Array:
    """Random integers of [low, high)."""
    return np.random.default_rng(seed).integers(low, high, shape)


def pack(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Codes of the last axis in words of 32 bits, one after the other, the first one lowest.

    `order` is the code that each place of a word has.
    """
    count = 32 // bits
    words = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // count)), np.int64)
    for index in range(codes.shape[-1]):
        word, place = divmod(index, count)
        if order is not None:
            place = order.index(place)
        words[..., word] |= codes[..., index].astype(np.int64) << (bits * place)
    return words.astype(np.uint32).view(np.int32)


def written(folder: Path, values: Mapping[str, Array], **dtypes: str) -> dict[str, TensorInfo]:
    """Write tensors; `dtypes` are those that NumPy has not, by the ends of their names."""
    header, data = {}, b""
    for name, array in values.items():
        end = name.rpartition(".")[2]
        dtype = dtypes.get(end) or _DTYPES[array.dtype.str[1:]]
        content = np.ascontiguousarray(array).tobytes()
        span = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": span}
        data += content
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return read_header(file)
