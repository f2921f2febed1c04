"""Kernels that read a picture as the stock client hands it over.

Definitions: gemma4_compile/operators/picture.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.picture import DTYPE, PictureBlocks, PicturePositions
from gemma4_compile.operators.tir import bind, function, store, when
from gemma4_compile.operators.vision import CHANNELS
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec

THREADS = 64


def make_picture_blocks(operator: PictureBlocks, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: values of a block / THREADS x blocks. Reference: `PictureBlocks.definition`."""
    cells, values = operator.across * operator.down, operator.block**2 * CHANNELS
    with function(scheduled=True) as build:
        picture = build.arg("picture", (1, operator.height, operator.width, CHANNELS), DTYPE)
        pixels = build.arg("pixels", (cells, values), "float32")
        with launch(THREADS, -(-values // THREADS), cells) as (part, cell, thread):
            channel = bind(part * THREADS + thread)
            with when(channel < values):
                store(pixels, operator.value(picture, cell, channel), cell, channel)
    return build.result


def make_picture_positions(operator: PicturePositions, _spec: TargetSpec) -> tirx.PrimFunc:
    """Every thread reads the mark. Grid: cells / THREADS.

    Reference: `PicturePositions.definition`.
    """
    with function(scheduled=True) as build:
        picture = build.arg("picture", operator.shape(), DTYPE)
        positions = build.arg("positions", (operator.cells, 2), "int32")
        with launch(THREADS, -(-operator.cells // THREADS)) as (part, _, thread):
            cell = bind(part * THREADS + thread)
            columns, count = operator.grid(picture)
            with when(cell < operator.cells):
                operator.put(positions, cell, columns, count)
    return build.result
