"""Kernels of pointwise operators: a thread an element.

Definitions: `Pointwise` in gemma4_compile/operators/pointwise.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.pointwise import Pointwise
from gemma4_compile.operators.tir import bind, function, i32, store, when
from gemma4_compile.targets.kernels.common.blocks import launch, row_threads
from gemma4_compile.targets.spec import TargetSpec


def make_pointwise(operator: Pointwise, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: runs of a row x rows. Reference: `Pointwise.definition`."""
    rows, width = symbolic_rows(None), operator.outputs
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        args = [build.arg(name, *tensor) for name, tensor in operator.arguments(rows)]
        y = build.arg("y", (rows, width), operator.result_dtype)
        with launch(threads, -(-width // threads), rows) as (run, i, thread):
            j = bind(run * threads + thread)
            with when(j < i32(width)):
                store(y, operator.value(args, i, j).astype(operator.result_dtype), i, j)
    return build.result
