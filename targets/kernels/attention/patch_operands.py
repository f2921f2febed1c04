"""Arguments of the attention of a picture's patches, for each of its kernels.

Definition: `PatchAttention` in operators/vision_attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.tir import FunctionBuilder
from gemma4_compile.operators.types import Buffer, Index
from gemma4_compile.operators.vision_attention import PatchAttention


@dataclass(frozen=True)
class PatchOperands:
    """The arguments of one kernel; `rows` are the patches."""

    rows: Index
    positions: Buffer
    q: Buffer
    key: Buffer
    value: Buffer
    out: Buffer


def patch_operands(build: FunctionBuilder, operator: PatchAttention) -> PatchOperands:
    """Declare the arguments of a function that has none yet."""
    n, heads, dim = symbolic_rows(None), operator.heads, operator.head_dim
    rows = n * operator.pooling**2
    return PatchOperands(
        rows,
        build.arg("positions", (n, 2), "int32"),
        build.arg("q", (rows, heads * dim), "float32"),
        build.arg("key", (rows, heads, dim), operator.cache_dtype),
        build.arg("value", (rows, heads, dim), operator.cache_dtype),
        build.arg("out", (rows, heads * dim), operator.out_dtype),
    )
