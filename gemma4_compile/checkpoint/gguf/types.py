"""Storage types of GGUF: which are read, and how their blocks become numbers.

Numbers, names and sizes of the types, and what a block holds, are those of the `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import CheckpointError, UsageError

INSTALL = "pip install 'gemma4-compile[gguf]'"

PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16", "I32": "I32", "I64": "I64"}
"""Types that other files have as well, by the names that those have there."""

BLOCKS = ("Q8_0", "Q4_0")
"""Types of blocks that are read wherever they are."""

OF_TABLES = ("Q6_K",)
"""Types that are read of token embeddings, where llama.cpp and Google's files of Q4_0 have them."""

_NO_WEIGHTS = ("I8", "I16", "F64")


@dataclass(frozen=True)
class BlockType:
    """A storage type: its name, and elements and bytes of a block."""

    name: str
    elements: int
    nbytes: int


def package() -> ModuleType:
    """The `gguf` package; UsageError if it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise UsageError(
            "to read GGUF files needs the package gguf, which is not installed", hint=INSTALL
        ) from error
    return gguf


def block_type(number: int, tensor: str) -> BlockType:
    """The type of a number; ValueError names the tensor of an unknown one."""
    constants = package()
    try:
        found = constants.GGMLQuantizationType(number)
    except ValueError:
        raise ValueError(f"tensor `{tensor}` has the unknown type {number}") from None
    elements, nbytes = constants.GGML_QUANT_SIZES[found]
    return BlockType(found.name, elements, nbytes)


def check_type(name: str, tensor: str, file: str, *, is_table: bool) -> None:
    """Refuse a type that is not read, by its name.

    Raises
    ------
    CheckpointError
        With the types that are read, and what else works.
    """
    if name in PLAIN or name in BLOCKS or (is_table and name in OF_TABLES):
        return
    why = "which is no weight"
    if name not in _NO_WEIGHTS:
        why = "which is not read: its error and the recipe's would add up"
    raise CheckpointError(
        f"tensor `{tensor}` in `{file}` has type {name}, {why}",
        hint="take the file of the same model in Q4_0 (of the QAT checkpoint, if there is one), "
        "Q8_0, BF16 or F16, or its safetensors checkpoint",
    )


def decoded(blocks: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float32]:
    """Elements of rows of whole blocks, (rows, bytes)."""
    gguf = package()
    found: npt.NDArray[np.float32] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    return found
