"""Matmuls on int8, with their parts as plain keywords."""

from __future__ import annotations

from typing import Any

from gemma4_compile.operators.activations import FLOAT32, Int8, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import Rows


def int8_linear(
    rows: Rows,
    layout: WeightLayout,
    in_dtype: str,
    epilogue: str = Epilogue.NONE.value,
    *,
    packed_out: bool = False,
    interleaved_out: bool = False,
    tiled: bool = False,
    tiled_out: bool = False,
    **fields: Any,
) -> Linear:
    """A matmul on groups of int8; `fields` are those of `Linear`."""
    output = PackedOutput(interleaved_out, tiled_out) if packed_out else FLOAT32
    return Linear(
        rows, layout, in_dtype, epilogue, activations=Int8(tiled), output=output, **fields
    )
