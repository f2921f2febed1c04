"""Before and Expected of what stands between two matmuls of a conformer layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile.operators.base import Operator, TensorSpec
from gemma4_compile.operators.conformer import (
    AddClipped,
    Clip,
    ClippedNorm,
    GatedConv,
    RelativeAttention,
)
from gemma4_compile.passes.fuse_clips import fuse_clips
from gemma4_compile.passes.fusion_limits import FusionLimits
from tests.passes.operator_modules import (
    F32,
    Tensors,
    assert_same,
    call,
    kinds,
    module,
    rewritten,
)

F16, WIDTH, EPS, ROWS = "float16", 8, 1e-6, 5
SPEC: TensorSpec = ((ROWS, WIDTH), F32)
HALF: TensorSpec = ((ROWS, WIDTH), F16)
BOUNDS: TensorSpec = ((4,), F32)
INPUTS: dict[str, TensorSpec] = {
    **dict.fromkeys(("x", "k", "v", "residual"), SPEC),
    "pairs": ((ROWS, 2 * WIDTH), F32),
    "w": ((WIDTH,), F32),
    "bias": ((WIDTH,), F32),
    "taps": ((WIDTH, 3), F32),
    "relative": ((4, WIDTH), F32),
    "scale": ((4,), F32),
    **dict.fromkeys(("first", "second", "third", "last"), BOUNDS),
}
NORM = ClippedNorm(WIDTH, EPS, F32, limit=10.0)
CONV, ATTENTION = GatedConv(WIDTH, 3), RelativeAttention(2, 4, 4, 50.0)
Body = Callable[[Tensors], list[nn.Tensor]]


def fused(body: Body) -> tvm.IRModule:
    return rewritten(module(INPUTS, body), FusionLimits(max_buffers=8), fuse_clips)


def one_call(operator: Operator, names: Sequence[str], spec: TensorSpec = SPEC) -> tvm.IRModule:
    return module(INPUTS, lambda x: call(operator, [x[name] for name in names], spec))


def after(x: nn.Tensor, bounds: nn.Tensor) -> nn.Tensor:
    shape = tuple(x.shape)
    return call(Clip(int(shape[1]), F32, F32, after=True), [x, bounds], (shape, F32))[0]


def before(x: nn.Tensor, bounds: nn.Tensor, dtype: str = F32) -> nn.Tensor:
    operator = Clip(WIDTH, x.dtype, dtype, before=True)
    return call(operator, [x, bounds], (SPEC[0], dtype))[0]


def silu(x: nn.Tensor) -> nn.Tensor:
    return call(Clip(WIDTH, F32, F32, silu=True), [x], SPEC)[0]


def normed(x: nn.Tensor, weight: nn.Tensor, operator: ClippedNorm = NORM) -> nn.Tensor:
    return call(operator, [x, weight], (SPEC[0], operator.out_dtype))[0]


def between_matmuls(x: Tensors) -> list[nn.Tensor]:
    return [before(silu(after(x["x"], x["first"])), x["last"], F16)]


def norm_and_residual(x: Tensors) -> list[nn.Tensor]:
    return [x["residual"] + normed(after(x["x"], x["first"]), x["w"]) * 0.5]


def silu_behind_a_norm(x: Tensors) -> list[nn.Tensor]:
    return [before(silu(normed(x["x"], x["w"])), x["last"], F16)]


def norm_of_a_sum(x: Tensors) -> list[nn.Tensor]:
    return [normed(after(x["x"], x["first"]) + x["bias"], x["w"])]


def conv(x: Tensors) -> list[nn.Tensor]:
    return call(CONV, [after(x["pairs"], x["first"]), x["taps"]], SPEC)


def attention(x: Tensors) -> list[nn.Tensor]:
    names = {"x": "first", "k": "second", "v": "third"}
    clipped = [after(x[name], x[bounds]) for name, bounds in names.items()]
    (attended,) = call(ATTENTION, [*clipped, x["relative"], x["scale"]], SPEC)
    return [before(attended, x["last"])]


def addition(x: Tensors) -> list[nn.Tensor]:
    return [x["residual"] + after(x["x"], x["first"])]


BOUNDED = ["x", "k", "v", "relative", "scale", "first", "second", "third", "last"]
CASES: dict[Body, tvm.IRModule] = {
    between_matmuls: one_call(
        Clip(WIDTH, F32, F16, True, True, True), ["x", "first", "last"], HALF
    ),
    norm_and_residual: one_call(
        ClippedNorm(WIDTH, EPS, F32, after=True, limit=10.0, factor=0.5),
        ["x", "first", "w", "residual"],
    ),
    silu_behind_a_norm: one_call(
        ClippedNorm(WIDTH, EPS, F16, silu=True, before=True, limit=10.0), ["x", "w", "last"], HALF
    ),
    norm_of_a_sum: one_call(
        ClippedNorm(WIDTH, EPS, F32, biased=True, after=True, limit=10.0),
        ["x", "bias", "first", "w"],
    ),
    conv: one_call(GatedConv(WIDTH, 3, True), ["pairs", "taps", "first"]),
    attention: one_call(RelativeAttention(2, 4, 4, 50.0, True), BOUNDED),
    addition: one_call(AddClipped(WIDTH, True), ["x", "residual", "first"]),
}


@pytest.mark.parametrize("body", CASES, ids=lambda body: body.__name__)
def test_what_is_between_matmuls_is_one_launch(body: Body) -> None:
    assert_same(fused(body), CASES[body])


def test_a_norm_without_a_factor_is_added_as_it_is() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        return [x["residual"] + normed(x["x"], x["w"])]

    operator = ClippedNorm(WIDTH, EPS, F32, limit=10.0, factor=1.0)
    assert_same(fused(body), one_call(operator, ["x", "w", "residual"]))


def test_bounds_of_a_rounded_norm_are_taken_before_it_is_rounded() -> None:
    half = ClippedNorm(WIDTH, EPS, F16, limit=10.0)

    def body(x: Tensors) -> list[nn.Tensor]:
        return [before(normed(x["x"], x["w"], half), x["last"], F16)]

    operator = ClippedNorm(WIDTH, EPS, F16, before=True, limit=10.0)
    assert_same(fused(body), one_call(operator, ["x", "w", "last"], HALF))


def read_twice(x: Tensors) -> list[nn.Tensor]:
    norm, clipped = normed(x["x"], x["w"]), after(x["k"], x["first"])
    return [before(norm, x["first"]), before(norm, x["last"]), x["v"] + clipped, silu(clipped)]


def residual_of_one_row(x: Tensors) -> list[nn.Tensor]:
    return [x["bias"] + normed(x["x"], x["w"])]


def times_a_tensor(x: Tensors) -> list[nn.Tensor]:
    return [x["residual"] + normed(x["x"], x["w"]) * x["bias"]]


def attention_without_bounds_behind_it(x: Tensors) -> list[nn.Tensor]:
    clipped = [after(x[name], x["first"]) for name in ("x", "k", "v")]
    return call(ATTENTION, [*clipped, x["relative"], x["scale"]], SPEC)


def silu_after_bounds_of_an_input(x: Tensors) -> list[nn.Tensor]:
    return [silu(before(x["x"], x["first"]))]


KEPT: list[Body] = [
    read_twice,
    residual_of_one_row,
    times_a_tensor,
    attention_without_bounds_behind_it,
    silu_after_bounds_of_an_input,
]


@pytest.mark.parametrize("body", KEPT, ids=lambda body: body.__name__)
def test_what_one_launch_cannot_say_stays(body: Body) -> None:
    assert_same(fused(body), module(INPUTS, body))


def values_of(of: tvm.IRModule) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(of, target="llvm"), tvm.cpu())
    rng = np.random.default_rng(0)
    shapes = [[int(size) for size in shape] for shape, _ in INPUTS.values()]
    drawn = [rng.normal(size=shape) for shape in shapes]
    args = [np.sort(one) / 2 if one.shape == (4,) else one for one in drawn]  # bounds in order
    found = vm["main"](*(tvm.runtime.tensor(one.astype(F32)) for one in args))
    return [one.numpy() for one in found]


def test_before_and_after_compute_the_same() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        return [result for case in CASES for result in case(x)]

    rewritten_body = fused(body)
    assert len(kinds(rewritten_body)) == len(CASES)
    both = zip(values_of(module(INPUTS, body)), values_of(rewritten_body), strict=True)
    for expected, found in both:
        tolerance = 1e-5 if found.dtype == np.float32 else 1e-3
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
