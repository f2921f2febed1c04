"""The dtype that transformers loads a checkpoint in, where its config names none.

Constant scales are rounded to it, so that another one would change replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemma4_compile.checkpoint.files import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, read_json
from gemma4_compile.checkpoint.quantised.read import quantization_of
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.checkpoint.weight_files import open_tensors
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.variants import (
    DEFAULT_DTYPE,
    DTYPES,
    PHONE_METHOD,
    names_dtype,
    quantised_by,
)
from gemma4_compile.options.process import warn

_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}


def loaded_dtype(path: Path, declared: str, option: str = "") -> str:
    """The dtype of a checkpoint's directory: `declared`, unless its config names none.

    Then it is that of the weights, or, with a warning, DEFAULT_DTYPE; `option` begins the warning.

    Raises
    ------
    CheckpointError
        If a file is damaged.
    """
    values = read_json(path / CONFIG_FILE)
    quantized = quantization_of(values)
    is_for_phones = isinstance(quantized, Mapping) and quantised_by(quantized) == PHONE_METHOD
    if names_dtype(values) or is_for_phones:  # whose constants are not rounded
        return declared
    found = _of_index(path) or _of_tensors(path)
    if found is not None:
        return found
    warn(
        f"{option}config.json names no `dtype`, and there are no weights to take it from: "
        f"{DEFAULT_DTYPE} is taken, as Google's have it",
        'write `"dtype"` into config.json if the weights have another: constants are rounded to it',
    )
    return DEFAULT_DTYPE


def _of_index(path: Path) -> str | None:
    """What the index says of itself, which transformers reads first where it needs an index."""
    if (path / SINGLE_FILE).exists() or not (path / INDEX_FILE).exists():
        return None
    metadata = read_json(path / INDEX_FILE).get("metadata")
    found = metadata.get("dtype") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) and found in DTYPES else None


def _of_tensors(path: Path) -> str | None:
    """The first of a kind that is read, by name, of the first file."""
    try:
        tensors = open_tensors(path).values()
    except CheckpointError:  # said where weights are needed
        return None
    ordered: list[TensorInfo] = sorted(tensors, key=lambda one: (str(one.path), one.name))
    of_first = [one for one in ordered if one.path == ordered[0].path]
    found = next((_FLOATS[one.dtype] for one in of_first if one.dtype in _FLOATS), None)
    return found if found in DTYPES else None
