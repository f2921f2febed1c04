"""Which rows a picture's rows see in a prefill chunk: those of their own picture.

A block is a maximal run of picture rows (`abi.MODALITY_MEDIA`) inside the chunk. A chunk never cuts
a picture, so that its future rows have their keys in the KV state when the first one attends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile import abi
from gemma4_compile.operators.base import Operator, symbolic_rows
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Expr
from gemma4_compile.types import Array


def is_picture(modality: Expr) -> Expr:
    """Return whether a row is a picture's; rows of sounds are causal as text is."""
    return tirx.EQ(modality, i32(abi.MODALITY_MEDIA))


def example_modality(rows: int) -> npt.NDArray[np.int32]:
    """Rows of several pictures, with text around them and a row of a sound between two."""
    modality = np.full(rows, abi.MODALITY_MEDIA, np.int32)
    modality[rows // 4] = abi.MODALITY_AUDIO
    modality[[0, rows // 2, rows - 1]] = abi.MODALITY_TEXT
    return modality


def example_last_rows(rows: int) -> npt.NDArray[np.int32]:
    """`LastVisibleRows` of `example_modality`."""
    modality = example_modality(rows)
    ends = np.arange(rows, dtype=np.int32)
    for row in reversed(range(rows - 1)):
        if modality[row] == modality[row + 1] == abi.MODALITY_MEDIA:
            ends[row] = ends[row + 1]
    return ends


@dataclass(frozen=True)
class LastVisibleRows(Operator):
    """The last row that each row of a chunk sees where pictures see themselves.

    (modality (rows,) int32) -> (rows,) int32: the last row of the row's block, or the row itself if
    it is in none. It never falls from one row to the next.

    References
    ----------
    transformers 5.24.0, `get_block_sequence_ids_for_mask` of models/gemma4/modeling_gemma4.py.
    """

    kind: ClassVar[str] = "last_visible_rows"

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return example_modality(*shape) if name == "modality" else None

    def definition(self) -> tirx.PrimFunc:
        rows = symbolic_rows(None)
        with function(scheduled=False) as build:
            modality = build.arg("modality", (rows,), "int32")
            last_rows = build.arg("last_rows", (rows,), "int32")
            end = LocalVar("int32", i32(rows) - 1)  # of the block that goes on to the right
            with T.serial(0, rows) as step:
                i = bind(i32(rows) - 1 - i32(step))
                following = tirx.min(i + 1, i32(rows) - 1)
                goes_on = is_picture(modality[i]) & is_picture(modality[following])
                end.set(tirx.Select(goes_on, end.value, i))
                store(last_rows, end.value, i)
        return build.result
