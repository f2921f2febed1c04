"""Attention on a CPU: scores are added up in vectors.

Definitions: operators/attention.py, split_attention.py, packed_texts.py, vision_attention.py, of
which all but the scores is taken as it is. A score is the same whatever the rows of the call, and
the same for a token that is decoded as for one of a chunk.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.dots import Channels
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.tir import store
from gemma4_compile.operators.types import Expr
from gemma4_compile.operators.vision_attention import PatchAttention

LANES = (32, 16, 8, 4, 2, 1)
"""Sums of a score that are added up side by side, by the first that divides its channels: four
vectors of AVX2, whose additions need not wait for one another."""


def make_host_attention(
    operator: PrefillAttention | SplitAttention | SpanAttention | PatchAttention,
) -> tirx.PrimFunc:
    """The definition with `dot_in_lanes`."""
    return operator.with_dot(dot_in_lanes)


def dot_in_lanes(count: int, left: Channels, right: Channels) -> Expr:
    """See `operators.dots.Dot`; at the end halves are added to each other."""
    lanes = next(lanes for lanes in LANES if count % lanes == 0)
    sums = T.alloc_buffer((lanes,), "float32", scope="local")
    with T.vectorized(0, lanes) as lane:
        store(sums, f32(0.0), lane)
    with T.serial(0, count // lanes) as part, T.vectorized(0, lanes) as lane:
        channel = part * lanes + lane
        store(sums, sums[lane] + left(channel) * right(channel), lane)
    while lanes > 1:
        lanes //= 2
        with T.vectorized(0, lanes) as lane:
            store(sums, sums[lane] + sums[lane + lanes], lane)
    return sums[0]
