"""How lanes of int8_gemv.py hold what they read ahead, by measurements on an H200.

Registers decide: a multiprocessor of CUDA has 65,536. What is on its way while a kernel waits for
the one before it, or makes its vector, takes some for as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape
from gemma4_compile.targets.tuning import Int8GemvTuning

HELD = 12  # groups of a lane in the text of a loop
FEW_GROUPS = 3  # of a row
NARROW = 2048  # channels of a vector whose norm takes few registers
UNROLLED_WORDS = 4  # of a group's weights, for which rows that are written out were measured


@dataclass(frozen=True)
class Reading:
    """A kernel's way to read rows ahead.

    Attributes
    ----------
    resident : blocks that a multiprocessor is to hold, by their registers: only then do reads stay
        where the text has them (targets/cuda_programmatic.py). 0: not said
    as_stored : whether scales and minima stay as they are stored until their row is taken
    unrolled : rows of a group of lanes in the text of a loop, at most
    """

    resident: int = 0
    as_stored: bool = False
    unrolled: int = 1


def reading_of(
    operator: Linear, shape: Int8Shape, iterations: int, tuning: Int8GemvTuning
) -> Reading:
    """The way of a matmul whose blocks take so many tiles."""
    if tuning.resident_threads == 0:
        return Reading()
    layout, groups = operator.layout, -(-operator.cols // GROUP // shape.lanes)
    fits = groups * min(shape.rows, tuning.unrolled_rows) <= HELD
    if isinstance(layout, MinimaLayout) and not fits and iterations == 1:
        return Reading()  # spills, and is slower
    is_packed = operator.is_plain and operator.in_dtype == PACKED and not operator.packed_out
    pairs = operator.packed_out and operator.prologue.writes_residual
    threads, unrolled = tuning.resident_threads, 1
    words = layout.packing.words(GROUP)
    if words == UNROLLED_WORDS and ((is_packed and fits) or (pairs and groups <= FEW_GROUPS)):
        unrolled = tuning.unrolled_rows
        if is_packed or (iterations == 1 and operator.cols <= NARROW):
            threads = tuning.most_resident_threads
    return Reading(threads // shape.threads, True, unrolled)
