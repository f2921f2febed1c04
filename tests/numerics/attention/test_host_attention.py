"""Attention of the CPU target, whose scores are added up in vectors, next to its definitions."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.heads import CachePart
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.rows import CHUNK, ONE, Joint
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.vision_attention import PatchAttention
from tests.numerics.host_kernels import check_host_kernel, run_host

F16, F32 = "float16", "float32"

OPERATORS = {
    "chunk": (PrefillAttention(CHUNK, 4, 2, 64, 9, F16, 32, F16), Sizes(5, 40, 0, 5)),
    "pictures": (
        PrefillAttention(CHUNK, 2, 1, 32, 9, F32, 32, F32, sees_pictures=True),
        Sizes(7, 40, 0, 7),
    ),
    "a part of the keys": (
        PrefillAttention(CHUNK, 2, 1, 32, None, F32, None, F32, part=CachePart(1, 2)),
        Sizes(5, 9, 16, 5),
    ),
    "a token": (
        SplitAttention(ONE, 4, 1, 64, None, F16, None, splits=1, grain=64),
        Sizes(1, 9, 16, 1),
    ),
    "tokens of several": (
        SplitAttention(Joint(3), 2, 1, 32, None, F32, None, splits=1, grain=64),
        Sizes(3, 9, 16, 3),
    ),
    "texts": (SpanAttention(4, 2, 32, 3, F16, F16), Sizes(9, 0, 0, 9)),
    "texts, an odd head": (SpanAttention(2, 1, 35, None, F32, F32), Sizes(9, 0, 0, 9)),
    "patches": (PatchAttention(2, 72, 3, F16, F16), Sizes(4, 0, 0, 4)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_kernel_is_its_definition(name: str) -> None:
    check_host_kernel(*OPERATORS[name])


def test_a_text_does_not_depend_on_the_others() -> None:
    operator = SpanAttention(2, 1, 32, None, F32, F32)
    rng = np.random.default_rng(2)
    shapes = ((9, 64), (9, 1, 32), (9, 1, 32))
    q, key, value = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    spans = np.array([[0, 4]] * 4 + [[4, 9]] * 5, np.int32)
    together, alone = np.empty((9, 64), np.float32), np.empty((5, 64), np.float32)
    run_host(operator, spans, q, key, value, together)
    run_host(operator, spans[4:] - 4, q[4:], key[4:], value[4:], alone)
    np.testing.assert_array_equal(together[4:], alone)
