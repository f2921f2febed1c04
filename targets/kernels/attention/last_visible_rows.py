"""The last row of a prefill chunk that each of its rows sees, once for all layers."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.picture_attention import LastVisibleRows, is_picture
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_last_visible_rows(_operator: LastVisibleRows, _spec: TargetSpec) -> tirx.PrimFunc:
    """Each row looks ahead to the end of its run: 1,120 steps for the largest picture.

    Grid: runs of rows. Reference: `LastVisibleRows.definition`.
    """
    rows = symbolic_rows(None)
    with function(scheduled=True) as build:
        modality = build.arg("modality", (rows,), "int32")
        last_rows = build.arg("last_rows", (rows,), "int32")
        with launch(THREADS, tirx.floordiv(rows + (THREADS - 1), THREADS)) as (block, _, thread):
            row = bind(i32(block * THREADS + thread))
            with when(row < i32(rows)):
                end = LocalVar("int32", row)
                following = i32(rows) - 1 - row
                steps = materialize(tirx.Select(is_picture(modality[row]), following, i32(0)))
                with T.serial(0, steps) as step:
                    next_row = bind(row + 1 + i32(step))
                    with when(tirx.EQ(end.value + 1, next_row) & is_picture(modality[next_row])):
                        end.set(next_row)
                store(last_rows, end.value, row)
    return build.result
