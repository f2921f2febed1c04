"""Operators whose kernels use tensor cores where the target has them: odd shapes of each kind."""

from __future__ import annotations

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.vision_attention import PatchAttention
from tests.numerics.linear.test_bounded_kernels import GATE, PAIRS, bounded
from tests.numerics.vision.test_vision_kernels import F16, F32, dense, eight_bits

MATMULS = (
    bounded(eight_bits(768, 256), F16),
    bounded(dense(200, 208), F16, out_dtype=F16),  # half a step of channels is left over
    bounded(eight_bits(320, 288), F16, GATE, out_dtype=F16),
    bounded(dense(416, 144), F16, PAIRS, clipped=False, out_dtype=F16),
    bounded(eight_bits(384, 96), F16, PAIRS, clipped=False),
)
ATTENTIONS = (
    PatchAttention(3, 64, 3, F16, F16),
    PatchAttention(2, 72, 3, F16, F16),  # half of the last 16 channels is there
    PatchAttention(1, 8, 2, F16, F32),
    PatchAttention(1, 96, 1, F16, F16),
)
OPERATORS: tuple[Operator, ...] = (*MATMULS, *ATTENTIONS)
