"""Before and Expected of the fusion of a norm with the matmul behind it."""

import dataclasses
from collections.abc import Callable

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Norm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.passes.fuse_norm_linear import fuse_norm_linear
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

LAYOUT = WeightLayout(4, "float16", 32, 64, (96,))
ROW, EPS = ((1, 64), F32), 1e-6
NORM = {"branch": ROW, "residual": ROW, "w_branch": ((64,), F32), "w_next": ((64,), F32)}
INPUTS = {**NORM, **weights(LAYOUT)}
LIMITS = FusionLimits(max_buffers=8)
NAMES = ("q_weight0", "q_scale0")


def normed(x: Tensors, names: tuple[str, ...] = tuple(NORM)) -> list[nn.Tensor]:
    operator = ResidualNorm(ONE, 64, EPS, False, "float16")
    return call(operator, [x[name] for name in names], ROW, ((1, 64), "float16"))


def linear(x: Tensors, hidden: nn.Tensor, kind: Callable[..., Linear] = Linear) -> list[nn.Tensor]:
    operator = kind(rows=ONE, in_dtype=hidden.dtype, layout=LAYOUT)
    return call(operator, [hidden, *(x[name] for name in NAMES)], ((1, 96), F32))


def before(kind: Callable[..., Linear] = Linear) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        residual, hidden = normed(x)
        return [residual, *linear(x, hidden, kind)]

    return module(INPUTS, body)


@pytest.mark.parametrize(("kind", "dtype"), [(Linear, "float16"), (int8_linear, F32)])
def test_a_norm_and_its_matmul_are_one_launch(kind: Callable[..., Linear], dtype: str) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = kind(ONE, LAYOUT, dtype, prologue=Norm(EPS))
        return call(operator, [x[name] for name in (*NORM, *NAMES)], ROW, ((1, 96), F32))

    after = rewritten(before(kind), LIMITS, fuse_norm_linear)
    assert_same(after, module(INPUTS, expected))


def test_two_branches_and_a_scalar_are_fused_as_well() -> None:
    inputs = {
        "dense": ROW,
        "chosen": ROW,
        "residual": ROW,
        "norms": ((3, 64), F32),
        "scalar": ((1,), F32),
        "w_next": ((64,), F32),
    }

    def unfused(x: Tensors) -> list[nn.Tensor]:
        operator = ResidualNorm(ONE, 64, EPS, True, F32, branches=2)
        residual, hidden = call(operator, [x[name] for name in inputs], ROW, ROW)
        return [residual, *linear(x, hidden)]

    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(ONE, LAYOUT, F32, prologue=Norm(eps=EPS, scaled=True, count=2))
        return call(operator, [x[name] for name in (*inputs, *NAMES)], ROW, ((1, 96), F32))

    every = {**inputs, **weights(LAYOUT)}
    limits = FusionLimits(max_buffers=10)
    assert_same(
        rewritten(module(every, unfused), limits, fuse_norm_linear), module(every, expected)
    )


def test_a_residual_without_a_norm_behind_it_keeps_its_later_readers() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        names = ("branch", "residual", "w_branch")
        (residual,) = call(ResidualNorm(ONE, 64, EPS, False, None), [x[n] for n in names], ROW)
        gate = linear(x, residual)
        again = call(
            ResidualNorm(ONE, 64, EPS, False, None), [x["branch"], residual, x["w_branch"]], ROW
        )
        return [*gate, *again]

    after = rewritten(module(INPUTS, body), LIMITS, fuse_norm_linear)
    assert kinds(after) == ["normed_linear", "residual_norm"]


TUNING = FusionTuning()


@pytest.mark.parametrize(
    "limits",
    [
        FusionLimits(max_buffers=7),
        FusionLimits(max_buffers=8, width=63),
        FusionLimits(max_buffers=8, tuning=dataclasses.replace(TUNING, max_weights=64 * 96 - 1)),
    ],
    ids=["buffers", "shared memory", "weights"],
)
def test_the_targets_limits_keep_two_launches(limits: FusionLimits) -> None:
    after = rewritten(before(), limits, fuse_norm_linear)
    assert_same(after, before())


def test_a_normed_vector_with_two_readers_stays() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        residual, hidden = normed(x)
        return [residual, *linear(x, hidden), *linear(x, hidden)]

    after = rewritten(module(INPUTS, body), LIMITS, fuse_norm_linear)
    assert kinds(after) == ["residual_norm", "linear", "linear"]


def test_a_residual_that_is_read_before_the_matmul_stays() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        residual, hidden = normed(x)
        other = {**x, "residual": residual}
        between = normed(other)
        return [*linear(x, hidden), *between]

    after = rewritten(module(INPUTS, body), LIMITS, fuse_norm_linear)
    assert kinds(after) == ["residual_norm", "residual_norm", "linear"]


def test_a_chunk_is_not_fused() -> None:
    shape, hidden_shape = ((5, 64), F32), ((5, 64), "float16")

    def body(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(CHUNK, 64, EPS, False, "float16")
        residual, hidden = call(norm, [x[name] for name in NORM], shape, hidden_shape)
        operator = Linear(rows=CHUNK, in_dtype="float16", layout=LAYOUT)
        args = [hidden, *(x[name] for name in NAMES)]
        return [residual, *call(operator, args, ((5, 96), F32))]

    inputs = {**INPUTS, "branch": shape, "residual": shape}
    after = rewritten(module(inputs, body), LIMITS, fuse_norm_linear)
    assert kinds(after) == ["residual_norm", "linear"]
