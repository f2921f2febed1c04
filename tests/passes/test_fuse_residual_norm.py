"""Before and Expected of norms and additions in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.moe import VECTORS
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.passes.fuse_residual_norm import fuse_residual_norm
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

WIDTH, EPS = 64, 1e-6
ROW, WEIGHT, HALF = ((1, WIDTH), F32), ((WIDTH,), F32), ((1, WIDTH), "float16")
INPUTS = {
    "branch": ROW,
    "x": ROW,
    "w_branch": WEIGHT,
    "scalar": ((1,), F32),
    "w_next": WEIGHT,
    "stack": ((VECTORS, WIDTH), F32),
    "three": ((3, WIDTH), F32),
}
LIMITS = FusionLimits(max_buffers=8)


def normed(x: nn.Tensor, weight: nn.Tensor, dtype: str = F32, eps: float = EPS) -> nn.Tensor:
    return call(RmsNorm(ONE, WIDTH, eps, dtype), [x, weight], ((1, WIDTH), dtype))[0]


def row(stack: nn.Tensor, index: int) -> nn.Tensor:
    return nn.op.take(stack, nn.Tensor.from_scalar(index, "int32"), axis=0)


def fused(before: tvm.IRModule) -> tvm.IRModule:
    return rewritten(before, LIMITS, fuse_residual_norm)


def one_call(operator: Operator, names: Sequence[str], *specs: object) -> tvm.IRModule:
    return module(INPUTS, lambda x: call(operator, [x[name] for name in names], *specs))  # type: ignore[arg-type]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("branch_first", [False, True])
def test_a_normed_branch_its_sum_and_the_next_norm(
    scaled: bool, is_normed: bool, branch_first: bool
) -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        branch = normed(x["branch"], x["w_branch"])
        total = branch + x["x"] if branch_first else x["x"] + branch
        total = total * x["scalar"] if scaled else total
        return [total, *([normed(total, x["w_next"], "float16")] if is_normed else [])]

    names = ["branch", "x", "w_branch", *(["scalar"] if scaled else [])]
    names += ["w_next"] if is_normed else []
    operator = ResidualNorm(ONE, WIDTH, EPS, scaled, "float16" if is_normed else None)
    expected = one_call(operator, names, ROW, *([HALF] if is_normed else []))
    assert_same(fused(module(INPUTS, body)), expected)


def test_rows_of_one_tensor_stay_one_argument() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total = x["x"] + normed(x["branch"], row(x["stack"], 0))
        return [total, normed(total, row(x["stack"], 1), "float16")]

    operator = ResidualNorm(ONE, WIDTH, EPS, False, "float16", VECTORS)
    expected = one_call(operator, ["branch", "x", "stack"], ROW, HALF)
    assert_same(fused(module(INPUTS, body)), expected)


def test_other_rows_are_weights_of_their_own() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total = x["x"] + normed(x["branch"], row(x["stack"], 1))
        return [total, normed(total, row(x["stack"], 0), "float16")]

    assert kinds(fused(module(INPUTS, body))) == ["relax.take", "relax.take", "residual_norm"]


def experts(x: Tensors) -> list[nn.Tensor]:
    dense, chosen = normed(x["branch"], row(x["three"], 0)), normed(x["x"], row(x["three"], 1))
    total = (x["x"] + normed(dense + chosen, row(x["three"], 2))) * x["scalar"]
    return [total, normed(total, x["w_next"], "float16")]


def test_both_branches_of_a_layer_with_experts() -> None:
    operator = ResidualNorm(ONE, WIDTH, EPS, True, "float16", branches=2)
    names = ["branch", "x", "x", "three", "scalar", "w_next"]
    assert_same(fused(module(INPUTS, experts)), one_call(operator, names, ROW, HALF))


def test_a_second_reader_of_the_sum_keeps_its_own_norm() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total = x["x"] + normed(x["branch"], x["w_branch"])
        return [normed(total, x["w_next"], "float16"), normed(total, x["w_next"])]

    def expected(x: Tensors) -> list[nn.Tensor]:
        names = ("branch", "x", "w_branch", "w_next")
        operator = ResidualNorm(ONE, WIDTH, EPS, False, "float16")
        total, hidden = call(operator, [x[name] for name in names], ROW, HALF)
        return [hidden, normed(total, x["w_next"])]

    assert_same(fused(module(INPUTS, body)), module(INPUTS, expected))


def test_a_sum_that_is_read_before_its_norm_is_normed_apart() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total = x["x"] + normed(x["branch"], x["w_branch"])
        between = total * total
        return [between, normed(total, x["w_next"])]

    found = kinds(fused(module(INPUTS, body)))
    assert found == ["residual_norm", "relax.multiply", "rms_norm"]


def test_a_normed_branch_with_two_readers_stays() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        branch = normed(x["branch"], x["w_branch"])
        return [x["x"] + branch, branch]

    before = module(INPUTS, body)
    assert_same(fused(before), before)


def test_a_norm_with_another_epsilon_stays() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total = x["x"] + normed(x["branch"], x["w_branch"])
        return [total, normed(total, x["w_next"], eps=1e-5)]

    assert kinds(fused(module(INPUTS, body))) == ["residual_norm", "rms_norm"]


def test_a_product_with_more_than_one_number_is_no_scalar() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        return [(x["x"] + normed(x["branch"], x["w_branch"])) * x["w_next"]]

    assert kinds(fused(module(INPUTS, body))) == ["residual_norm", "relax.multiply"]


def test_one_row_that_is_added_to_each_of_a_chunk_stays() -> None:
    inputs = {**INPUTS, "x": ((5, WIDTH), F32)}

    def body(x: Tensors) -> list[nn.Tensor]:
        return [x["x"] + normed(x["branch"], x["w_branch"])]

    assert kinds(fused(module(inputs, body))) == ["rms_norm", "relax.add"]


def test_rows_of_a_chunk_are_fused_as_well() -> None:
    chunk = ((5, WIDTH), F32)

    def body(x: Tensors) -> list[nn.Tensor]:
        operator = RmsNorm(CHUNK, WIDTH, EPS, F32)
        return [x["x"] + call(operator, [x["branch"], x["w_branch"]], chunk)[0]]

    after = fused(module({**INPUTS, "x": chunk, "branch": chunk}, body))
    assert kinds(after) == ["residual_norm"]


def values_of(of: tvm.IRModule) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(of, target="llvm"), tvm.cpu())
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(dtype) for shape, dtype in INPUTS.values()]
    return [one.numpy() for one in vm["main"](*map(tvm.runtime.tensor, args))]


def test_before_and_after_compute_the_same() -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        total, hidden = experts(x)
        stacked = total + normed(x["branch"], row(x["stack"], 0))
        next_of_stack = normed(stacked, row(x["stack"], 1))
        scaled = (stacked + normed(x["x"], x["w_branch"])) * x["scalar"]
        return [total, hidden, next_of_stack, normed(scaled, x["w_next"])]

    before = module(INPUTS, body)
    after = fused(before)
    assert kinds(after) == ["expert_residual_norm", "residual_norm", "residual_norm"]
    for expected, found in zip(values_of(before), values_of(after), strict=True):
        tolerance = 1e-5 if found.dtype == np.float32 else 1e-3
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
