"""From the stock client's padded texts to rows, and back to where it reads.

Definitions: gemma4_compile/operators/padded_texts.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.padded_texts import AROUND, FirstRows, PackedTexts
from gemma4_compile.operators.tir import bind, function, i32, store, when
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_packed_texts(operator: PackedTexts, _spec: TargetSpec) -> tirx.PrimFunc:
    """A thread a row, which counts its text's tokens by itself. Grid: rows of a text x texts.

    Reference: `PackedTexts.definition`.
    """
    with function(scheduled=True) as build:
        operands = operator.declare(build)
        stride = operands.length + AROUND
        grid = tirx.floordiv(stride + (THREADS - 1), THREADS)
        with launch(THREADS, grid, operands.count) as (part, text, thread):
            place = bind(i32(part) * THREADS + thread)
            with when(place < i32(stride)):
                operator.write(operands, i32(text), place, operator.count(operands, i32(text)))
    return build.result


def make_first_rows(operator: FirstRows, _spec: TargetSpec) -> tirx.PrimFunc:
    """A thread a channel of a row. Grid: channels x rows. Reference: `FirstRows.definition`."""
    width = operator.width
    with function(scheduled=True) as build:
        texts, length, x, out = operator.declare(build)
        parts = -(-width // THREADS)
        with launch(THREADS, texts * parts, length) as (part, place, thread):
            text = bind(tirx.truncdiv(i32(part), i32(parts)))
            channel = bind(tirx.truncmod(i32(part), i32(parts)) * THREADS + thread)
            with when(channel < width):
                value = tirx.Select(tirx.EQ(i32(place), i32(0)), x[text, channel], f32(0.0))
                store(out, value, text, place, channel)
    return build.result
