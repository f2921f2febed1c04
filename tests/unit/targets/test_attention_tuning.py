"""Which attention of a decode step has warps with keys of their own, by a target's tuning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.rows import ONE, Joint, Rows
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention.warp_shape import warp_shape

CUDA = target_spec("cuda")
SLIDING = SplitAttention(ONE, 8, 1, 256, 512, "float16", 1024, splits=8, grain=64)
FULL = SplitAttention(ONE, 8, 1, 512, None, "float16", None, splits=32, grain=64)


@pytest.mark.parametrize(
    ("operator", "rows", "heads"),
    [
        (SLIDING, ONE, 1),  # more would leave less than 64 blocks
        (SLIDING, Joint(9), 2),  # of the usual four rows 128
        (FULL, Joint(9), 2),  # 32 sums a lane
        (replace(SLIDING, heads=6, kv_heads=2), Joint(9), 1),  # of groups of three
    ],
)
def test_a_block_has_as_many_heads_as_fill_the_device(
    operator: SplitAttention, rows: Rows, heads: int
) -> None:
    shape = warp_shape(replace(operator, rows=rows), CUDA)

    assert shape is not None
    assert shape.heads == heads
    assert shape.scores <= 32


@pytest.mark.parametrize(
    "operator",
    [
        FULL,  # of one position: measured to be slower
        replace(SLIDING, head_dim=128),  # less than a warp reads at once
        replace(SLIDING, cache_dtype="float32"),
    ],
)
def test_other_heads_share_their_keys_among_threads(operator: SplitAttention) -> None:
    assert warp_shape(operator, CUDA) is None


def test_other_targets_do_as_they_did() -> None:
    for target, limits in (("webgpu", "h200"), ("metal", "default")):
        assert warp_shape(SLIDING, target_spec(target, limits)) is None
