"""From the rows of texts to one of length 1 for each.

Definitions: gemma4_compile/operators/packed_texts.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.packed_texts import END, FIRST, MeanRows, UnitRows
from gemma4_compile.operators.tir import LocalVar, bind, function, materialize, store, when
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    launch,
    row_threads,
    zero,
)
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_mean_rows(operator: MeanRows, _spec: TargetSpec) -> tirx.PrimFunc:
    """A thread a channel of a text. Grid: channels / THREADS x texts.

    Reference: `MeanRows.definition`.
    """
    texts, n, width = tirx.Var("texts", "int64"), symbolic_rows(None), operator.width
    with function(scheduled=True) as build:
        ranges = build.arg("ranges", (texts, 2), "int32")
        x = build.arg("x", (n, width), "float32")
        out = build.arg("out", (texts, width), "float32")
        with launch(THREADS, -(-width // THREADS), texts) as (part, i, thread):
            channel = bind(part * THREADS + thread)
            begin, end = materialize(ranges[i, FIRST]), materialize(ranges[i, END])
            with when(channel < width):
                total = LocalVar("float32", zero())
                with T.serial(0, end - begin) as place:
                    total.add(x[begin + place, channel])
                store(out, total.value / as_f32(end - begin), i, channel)
    return build.result


def make_unit_rows(operator: UnitRows, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Shared: one float32 a thread. Reference: `UnitRows.definition`."""
    n, width = symbolic_rows(None), operator.width
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x, y = (build.arg(name, (n, width), "float32") for name in "xy")
        with launch(threads, n) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce, row_slice = BlockReduction(block), RowSlice(block, width)
            mine = row_slice.load(x, i)
            squares = reduce(row_slice.dot(mine, mine))
            scale = row_slice.splat(bind(materialize(operator.inverse(squares), "float32")))
            row_slice.store(y, row_slice.map(lambda a: a * scale, mine), i)
    return build.result
