"""Kernel of the gate that keeps its largest values.

Definition: gemma4_compile/operators/sparse_gate.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32, gelu_tanh
from gemma4_compile.operators.rows import One
from gemma4_compile.operators.sparse_gate import SparseGate
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

VALUES_OF_BLOCK = 1024


def make_sparse_gate(operator: SparseGate, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block of a row sums all of its gates, which costs less than a launch that does.

    Grid: runs of one row, or rows. Shared: one float32 a thread. Reference:
    `SparseGate.definition`.
    """
    rows, width = operator.rows.extent(), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    run = VALUES_OF_BLOCK if isinstance(operator.rows, One) else width
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, 2 * width), "float32")
        y = build.arg("y", (rows, width), "float32")
        with launch(threads, -(-width // run), rows) as (part, i, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            total = LocalVar("float32", zero())
            with strided(block, width) as j:
                total.add(x[i, 2 * j])
            mean = materialize(reduce(total.value) / f32(width), "float32")
            squares = LocalVar("float32", zero())
            with strided(block, width) as j:
                difference = bind(x[i, 2 * j] - mean)
                squares.add(difference * difference)
            deviation = tirx.sqrt(reduce(squares.value) / f32(width))
            cut = materialize(mean + deviation * f32(operator.deviations), "float32")
            with T.serial(0, -(-min(run, width) // threads)) as step:
                j = bind(part * run + step * threads + thread)
                with when(j < i32(width)):
                    gate = tirx.max(x[i, 2 * j] - cut, zero())
                    store(y, gelu_tanh(gate) * x[i, 2 * j + 1], i, j)
    return build.result
