"""Writes a safetensors file, bfloat16 included, with NumPy alone and always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

_DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def to_bfloat16(values: Float32Array) -> npt.NDArray[np.uint16]:
    """Bits of the bfloat16 nearest to each finite float32 value, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)


def rounded(values: Float32Array, dtype: str) -> Float32Array:
    """The float32 values that remain when `values` are stored as `dtype`."""
    if dtype == "bfloat16":
        return (to_bfloat16(values).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.dtype(dtype)).astype(np.float32)


def _encode(values: Float32Array, dtype: str) -> bytes:
    stored = to_bfloat16(values) if dtype == "bfloat16" else values.astype(np.dtype(dtype))
    return stored.astype(stored.dtype.newbyteorder("<")).tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, Float32Array], dtype: str) -> None:
    """Store `tensors` in their order as `dtype` ("bfloat16", "float16" or "float32")."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.size * (4 if dtype == "float32" else 2)
        header[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(values.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for values in tensors.values():
            file.write(_encode(values, dtype))
