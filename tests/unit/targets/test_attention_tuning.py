"""Which attention of a decode step has warps with keys of their own, by a target's tuning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.rows import ONE, Joint, OneOf
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.attention.tensor_core_decode_shape import (
    tensor_core_decode_shape,
)
from gemma4_compile.targets.kernels.attention.warp_shape import warp_shape

CUDA = target_spec("cuda")
SLIDING = SplitAttention(ONE, 8, 1, 256, 512, "float16", 1024, splits=8, grain=64)
FULL = SplitAttention(ONE, 8, 1, 512, None, "float16", None, splits=32, grain=64)


@pytest.mark.parametrize(
    ("operator", "heads", "rows", "threads"),
    [
        (SLIDING, 2, 4, 256),  # of the usual four rows 128
        (FULL, 2, 1, 256),  # 32 sums a lane
        (replace(SLIDING, heads=6, kv_heads=2), 1, 3, 256),  # of groups of three
        (replace(FULL, heads=32, kv_heads=4, splits=16), 2, 1, 128),  # so many that they are halved
    ],
)
def test_a_block_has_as_many_heads_as_fill_the_device(
    operator: SplitAttention, heads: int, rows: int, threads: int
) -> None:
    """With fewer rows threads share their keys."""
    shape = warp_shape(replace(operator, rows=Joint(9)), CUDA)

    assert shape is not None
    assert (shape.heads, shape.rows, shape.threads) == (heads, rows, threads)
    assert shape.scores <= 32


@pytest.mark.parametrize(
    "operator",
    [
        replace(SLIDING, rows=ONE),  # measured to be slower in a step
        replace(SLIDING, rows=Joint(9), head_dim=128),  # less than a warp reads at once
        replace(SLIDING, rows=Joint(9), cache_dtype="float32"),
    ],
)
def test_other_heads_share_their_keys_among_threads(operator: SplitAttention) -> None:
    assert warp_shape(operator, CUDA) is None


def test_other_targets_do_as_they_did() -> None:
    for target, limits in (("webgpu", "h200"), ("metal", "default")):
        assert warp_shape(replace(SLIDING, rows=Joint(9)), target_spec(target, limits)) is None


@pytest.mark.parametrize(
    ("heads", "kv_heads", "own"), [(8, 1, 8), (16, 1, 8), (32, 4, 8), (8, 2, 4), (12, 2, 6)]
)
def test_query_heads_of_a_full_layer_are_rows_of_a_product(
    heads: int, kv_heads: int, own: int
) -> None:
    for rows in (ONE, Joint(9)):
        operator = replace(FULL, heads=heads, kv_heads=kv_heads, rows=rows)
        shape = tensor_core_decode_shape(operator, CUDA)

        assert shape is not None
        assert (shape.heads, shape.warps, shape.threads, shape.resident) == (own, 8, 256, 2)


@pytest.mark.parametrize(
    "operator",
    [
        SLIDING,
        replace(SLIDING, rows=Joint(9)),  # as fast, and slower of few rows
        replace(FULL, rows=OneOf(2)),
        replace(FULL, rows=Joint(9), cache_dtype="float32"),
        replace(FULL, rows=Joint(9), head_dim=576),
    ],
)
def test_other_attention_has_no_tensor_cores(operator: SplitAttention) -> None:
    assert tensor_core_decode_shape(operator, CUDA) is None
    for target, limits in (("webgpu", "h200"), ("metal", "default")):
        full = replace(FULL, rows=Joint(9))
        assert tensor_core_decode_shape(full, target_spec(target, limits)) is None
