"""Before and Expected of two matmuls of one position in one launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.linear_pair import LinearPair
from gemma4_compile.operators.prologues import Combine
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.passes.fuse_attention_combine import fuse_attention_combine
from gemma4_compile.passes.fuse_linear_pairs import fuse_linear_pairs
from gemma4_compile.passes.fusion_limits import FusionLimits, fusion_limits
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape
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

COLS, RANK, ROWS, SPLITS, HEADS, DIM = 64, 32, 96, 4, 2, 32
WIDE, LEFT = (
    WeightLayout(4, "float16", 32, COLS, (ROWS,)),
    WeightLayout(4, "float16", 32, COLS, (RANK,)),
)
RIGHT = WeightLayout(4, "float16", 32, RANK, (ROWS,))
LIMITS = FusionLimits(10, width=COLS, fits_one_launch=lambda first, second: True)
INPUTS = {
    "x": ((1, COLS), "float16"),
    "o_partial": ((SPLITS, HEADS, DIM), "float16"),
    "split_lse": ((SPLITS, HEADS, 2), F32),
    **{
        f"{part}_{name}": spec
        for part, layout in zip("abcd", (WIDE, WIDE, LEFT, RIGHT), strict=True)
        for name, spec in weights(layout).items()
    },
}


def of(x: Tensors, part: str) -> list[nn.Tensor]:
    return [x[f"{part}_{name}"] for name in ("q_weight0", "q_scale0")]


def matmul(layout: WeightLayout, args: list[nn.Tensor], in_dtype: str = "float16") -> nn.Tensor:
    return call(Linear(ONE, layout, in_dtype), args, ((1, layout.rows), F32))[0]


def layer(x: Tensors) -> list[nn.Tensor]:
    """A projection, attention's output, and a low-rank branch behind them in the program."""
    projected = matmul(WIDE, [x["x"], *of(x, "a")])
    combine = CombineSplits(HEADS, DIM, SPLITS, "float16")
    (hidden,) = call(combine, [x["o_partial"], x["split_lse"]], ((1, COLS), "float16"))
    attended = matmul(WIDE, [hidden, *of(x, "b")])
    low = matmul(LEFT, [x["x"], *of(x, "c")])
    return [projected, attended, matmul(RIGHT, [low, *of(x, "d")], F32)]


def test_a_low_rank_branch_goes_into_the_launches_before_it() -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        wide, right = Linear(ONE, WIDE, "float16"), Linear(ONE, RIGHT, F32)
        left = LinearPair(wide, Linear(ONE, LEFT, "float16"), shared=True)
        projected, low = call(
            left, [x["x"], *of(x, "a"), *of(x, "c")], ((1, ROWS), F32), ((1, RANK), F32)
        )
        combined = replace(wide, prologue=Combine(HEADS, DIM, SPLITS))
        args = [x["o_partial"], x["split_lse"], *of(x, "b"), low, *of(x, "d")]
        pair = LinearPair(combined, right, shared=False)
        return [projected, *call(pair, args, ((1, ROWS), F32), ((1, ROWS), F32))]

    found = rewritten(module(INPUTS, layer), LIMITS, fuse_attention_combine, fuse_linear_pairs)
    assert_same(found, module(INPUTS, expected))


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, fits_one_launch=None),
        replace(LIMITS, fits_one_launch=lambda first, second: False),
        replace(LIMITS, max_buffers=6),
        replace(LIMITS, tuning=FusionTuning(max_paired_weights=RANK * COLS - 1)),
    ],
    ids=["a CPU", "other blocks", "too many buffers", "a large matrix"],
)
def test_what_does_not_fit_stays(limits: FusionLimits) -> None:
    before = module(INPUTS, layer)
    assert_same(rewritten(before, limits, fuse_linear_pairs), before)


def made(*operators: Linear) -> tvm.IRModule:
    """Matmuls of one vector, one after the other."""

    def body(x: Tensors) -> list[nn.Tensor]:
        return [
            call(operator, [x["x"], *of(x, part)], ((1, operator.outputs), F32))[0]
            for part, operator in zip("ac", operators, strict=True)
        ]

    return module(INPUTS, body)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            Linear(ONE, WIDE, "float16", "gelu_pairs"),
            Linear(ONE, LEFT, "float16", "softcap", cap=3.0),
        ),
        (Linear(ONE, WIDE, "float16"), Linear(ONE, LEFT, "float16", "gelu_pairs")),
        (Linear(ONE, WIDE, "float16"), Linear(ONE, LEFT, "float16", suppressed=(3,))),
        (Linear(CHUNK, WIDE, "float16"), Linear(ONE, LEFT, "float16")),
        (Linear(ONE, WIDE, "float16"), Linear(CHUNK, LEFT, "float16")),
    ],
)
def test_only_plain_products_of_one_position_go(first: Linear, second: Linear) -> None:
    before = made(first, second)
    assert_same(rewritten(before, LIMITS, fuse_linear_pairs), before)


def test_matrices_of_floats_go_as_well() -> None:
    dense = {
        part: WeightLayout(0, F32, 0, COLS, (rows,)) for part, rows in (("a", ROWS), ("c", RANK))
    }
    inputs = {"x": INPUTS["x"], **{part: ((one.rows, COLS), F32) for part, one in dense.items()}}

    def body(x: Tensors) -> list[nn.Tensor]:
        return [matmul(layout, [x["x"], x[part]]) for part, layout in dense.items()]

    def expected(x: Tensors) -> list[nn.Tensor]:
        first, second = (Linear(ONE, one, "float16") for one in dense.values())
        pair = LinearPair(first, second, shared=True)
        return call(pair, [x["x"], x["a"], x["c"]], ((1, ROWS), F32), ((1, RANK), F32))

    after = rewritten(module(inputs, body), LIMITS, fuse_linear_pairs)
    assert_same(after, module(inputs, expected))


def test_a_launch_takes_no_third() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        args = [[x["x"], *of(x, part)] for part in "acc"]
        return [matmul(one, own) for one, own in zip((WIDE, LEFT, LEFT), args, strict=True)]

    after = rewritten(module(INPUTS, body), LIMITS, fuse_linear_pairs)
    assert kinds(after) == ["linear_pair", "linear"]


@pytest.mark.parametrize("name", ["webgpu", "metal", "cuda"])
def test_gpus_put_alike_blocks_together(name: str) -> None:
    spec = target_spec(name)
    fits = fusion_limits(spec).fits_one_launch
    assert fits is not None
    wide, left = (Linear(ONE, layout, "float16") for layout in (WIDE, LEFT))
    assert fits(wide, left)
    fits = fusion_limits(replace(spec, max_shared_memory_bytes=4096)).fits_one_launch
    assert fits is not None
    assert not fits(
        replace(wide, prologue=Combine(HEADS, 1024, SPLITS), layout=replace(WIDE, cols=2048)), left
    )
    assert fusion_limits(target_spec("cpu")).fits_one_launch is None


def test_a_second_matmul_of_int8_takes_the_blocks_of_the_first() -> None:
    """That of attention's output has more threads than a small one by itself; the sums stay."""
    spec = target_spec("webgpu", "h200")
    wide = WeightLayout(4, "float16", 32, 2048, (2048,))
    first = int8_linear(ONE, wide, "float16", prologue=Combine(8, 256, SPLITS))
    second = int8_linear(ONE, replace(wide, cols=64), F32)
    own, threads = int8_shape(second, spec), int8_shape(first, spec).threads
    beside = int8_shape(second, spec, threads)
    assert own.threads != beside.threads == threads
    assert own.lanes == beside.lanes
    fits = fusion_limits(spec).fits_one_launch
    assert fits is not None
    assert fits(first, second)
    assert not fits(
        first, Linear(ONE, replace(wide, cols=64), F32)
    )  # floats have blocks of one size
    # With fewer lanes for a row than it has alone its sums would be others.
    many = int8_linear(ONE, replace(wide, cols=64 * 1024), PACKED)
    few = int8_linear(ONE, wide, PACKED)
    assert int8_shape(many, spec).lanes > int8_shape(few, spec).threads
    assert not fits(few, many)
