"""Row lookup in a stored table; a thread decodes one unit of channels.

Definition: `Embedding.definition`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.lookup import OF_PLACES, WHOLE, Embedding, is_window
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import launch, zero
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_embedding(operator: Embedding, _spec: TargetSpec) -> tirx.PrimFunc:
    """``out[i] = W[ids[i] - row_begin] * scale`` where the splits, or a window, hold that row.

    Grid: units / THREADS x rows. Reference: `Embedding.definition`.
    """
    n, layout = operator.rows.extent(), operator.layout
    with function(scheduled=True) as build:
        ids = build.arg("ids", (n,), "int32")
        is_placed, is_whole = operator.table == OF_PLACES, operator.table == WHOLE
        places = build.arg("places", (n,), "int32") if is_placed else None
        weights = WeightReader(build, layout, operator.shapes)
        shape = (n, operator.cols)
        previous = build.arg("previous", shape, "float32") if operator.accumulate else None
        out = build.arg("out", shape, "float32")
        size = weights.unit
        with launch(THREADS, -(-weights.units // THREADS), n) as (block, i, thread):
            unit = bind(block * THREADS + thread)
            row = bind(ids[i] - operator.row_begin)

            def stored(own: Expr) -> Expr:
                """The row of a split's tensors that holds one of the split's rows."""
                if is_whole:
                    return own
                place = i if places is None else places[i]
                return tirx.Select(is_window(weights.first, layout), i32(place), own)

            with when(unit < weights.units):
                with when((row >= 0) & (row < layout.rows)):

                    def lookup(split: Sequence[Buffer], begin: int) -> None:
                        values, scale = weights.read_unit(split, bind(stored(row - begin)), unit)
                        for j, value in enumerate(values):
                            store(out, value * scale * f32(operator.scale), i, unit * size + j)

                    weights.in_split(row, lookup)
                with when((row < 0) | (row >= layout.rows)):
                    for j in range(size):
                        column = unit * size + j
                        store(out, zero() if previous is None else previous[i, column], i, column)
    return build.result
