"""Before and Expected of the flash-decoding combine in the output projection."""

import dataclasses
from collections.abc import Callable

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.prologues import Combine
from gemma4_compile.operators.rows import ONE
from gemma4_compile.passes.fuse_attention_combine import fuse_attention_combine
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.targets.tuning import FusionTuning
from tests.matmuls import int8_linear
from tests.passes.operator_modules import (
    F32,
    Tensors,
    assert_same,
    call,
    kinds,
    module,
    rewritten,
    weights,
)

LAYOUT = WeightLayout(8, "float16", 32, 128, (64,))
HEADS, DIM, SPLITS = 2, 64, 4
INPUTS = {
    "o_partial": ((SPLITS, HEADS, DIM), "float16"),
    "split_lse": ((SPLITS, HEADS, 2), F32),
    **weights(LAYOUT),
}
NAMES = ("q_weight0", "q_scale0")
TUNING = FusionTuning()


def before(kind: Callable[..., Linear] = Linear, readers: int = 1) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        combine = CombineSplits(HEADS, DIM, SPLITS, "float16")
        (hidden,) = call(combine, [x["o_partial"], x["split_lse"]], ((1, 128), "float16"))
        matmul = kind(rows=ONE, in_dtype="float16", layout=LAYOUT)
        args = [hidden, *(x[name] for name in NAMES)]
        return [call(matmul, args, ((1, 64), F32))[0] for _ in range(readers)]

    return module(INPUTS, body)


@pytest.mark.parametrize("kind", [Linear, int8_linear])
def test_combine_and_projection_are_one_launch(kind: Callable[..., Linear]) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = kind(ONE, LAYOUT, "float16", prologue=Combine(HEADS, DIM, SPLITS))
        return call(
            operator, [x[name] for name in ("o_partial", "split_lse", *NAMES)], ((1, 64), F32)
        )

    after = rewritten(before(kind), FusionLimits(max_buffers=5), fuse_attention_combine)
    assert_same(after, module(INPUTS, expected))


@pytest.mark.parametrize(
    "limits",
    [
        FusionLimits(max_buffers=4),
        FusionLimits(max_buffers=5, width=127),
        FusionLimits(max_buffers=5, tuning=dataclasses.replace(TUNING, max_combined_splits=3)),
        FusionLimits(max_buffers=5, tuning=dataclasses.replace(TUNING, max_combine_bytes=1023)),
    ],
    ids=["buffers", "shared memory", "splits", "bytes"],
)
def test_the_targets_limits_keep_two_launches(limits: FusionLimits) -> None:
    after = rewritten(before(), limits, fuse_attention_combine)
    assert kinds(after) == ["combine_splits", "linear"]


def test_a_target_without_blocks_has_no_limit_on_splits() -> None:
    tuning = dataclasses.replace(TUNING, max_combined_splits=0)
    limits = FusionLimits(max_buffers=None, tuning=tuning)
    assert kinds(rewritten(before(), limits, fuse_attention_combine)) == ["combined_linear"]


def test_a_combined_vector_with_two_readers_stays() -> None:
    after = rewritten(before(readers=2), FusionLimits(max_buffers=5), fuse_attention_combine)
    assert kinds(after) == ["combine_splits", "linear", "linear"]
