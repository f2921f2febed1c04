"""Which rows of a chunk are kept, and the rotary values of their positions; once for all layers.

Definitions: gemma4_compile/operators/padded_rows.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.padded_rows import (
    KeptRows,
    ShiftedRotary,
    padding_before,
    store_padding,
    store_positions,
)
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_kept_rows(operator: KeptRows, _spec: TargetSpec) -> tirx.PrimFunc:
    """Each row counts the rows before it that are kept: 512 steps in a chunk of 512.

    Grid: runs of rows. Reference: `KeptRows.definition`.
    """
    with function(scheduled=True) as build:
        args = operator.declare(build)
        rows, embeddings, source = args.rows, args.embeddings, args.source

        def one_if_kept(row: Expr) -> Expr:
            return tirx.Select(operator.is_kept(embeddings, row), i32(1), i32(0))

        with launch(THREADS, tirx.floordiv(rows + (THREADS - 1), THREADS)) as (block, _, thread):
            row = bind(i32(block * THREADS + thread))
            with when(row < i32(rows)):
                first = materialize(args.positions[0])
                before = materialize(padding_before(args.padding, first))
                up_to = LocalVar("int32", i32(0))
                kept = LocalVar("int32", i32(0))
                with T.serial(0, i32(rows)) as other:
                    one = materialize(one_if_kept(other))
                    up_to.add(tirx.Select(other <= row, one, i32(0)))
                    kept.add(one)
                store_padding(args.padding, before + row + 1 - up_to.value, first + row)
                missing = materialize(i32(rows) - kept.value)
                with when(operator.is_kept(embeddings, row)):
                    store(source, row, missing + up_to.value - 1)
                    copies_of_row = tirx.Select(tirx.EQ(up_to.value, 1), missing, i32(0))
                    with T.serial(0, materialize(copies_of_row)) as place:
                        store(source, row, place)
                with when(tirx.EQ(kept.value, 0)):
                    store(source, i32(0), row)
                with when(tirx.EQ(row, 0)):
                    store_positions(args.kept_positions, first - before, kept.value)
                    store(args.copies, missing, 0)
    return build.result


def make_shifted_rotary(operator: ShiftedRotary, _spec: TargetSpec) -> tirx.PrimFunc:
    """A thread a pair of a row.

    Grid: runs of pairs x rows. Reference: `ShiftedRotary.definition`.
    """
    pairs = operator.pairs
    with function(scheduled=True) as build:
        args = operator.declare(build)
        with launch(THREADS, -(-pairs // THREADS), args.rows) as (run, i, thread):
            pair = bind(run * THREADS + thread)
            with when(pair < pairs):
                operator.turn_back(args, i, pair)
    return build.result
