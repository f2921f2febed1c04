"""Norm of a conformer layer with its neighbours: a block a row.

Definition: `ClippedNorm` in gemma4_compile/operators/conformer.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.conformer import ClippedNorm
from gemma4_compile.operators.tir import LocalVar, bind, function, store
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    inverse_rms,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec


def make_clipped_norm(operator: ClippedNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Shared: one float32 a thread. Reference: `ClippedNorm.definition`."""
    rows, width = symbolic_rows(None), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = {name: build.arg(name, *tensor) for name, tensor in operator.arguments(rows)}
        y = build.arg("y", (rows, width), operator.out_dtype)
        with launch(threads, rows) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            squares = LocalVar("float32", zero())
            with strided(block, width) as j:
                value = bind(operator.entering(args, i, j))
                squares.add(value * value)
            inverse = inverse_rms(reduce(squares.value), width, operator.eps)
            with strided(block, width) as j:
                normed = operator.entering(args, i, j) * inverse
                store(y, operator.leaving(args, normed, i, j), i, j)
    return build.result
