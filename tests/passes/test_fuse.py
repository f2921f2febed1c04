"""All fusions of a target together: the launches that are left of a few operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import VECTORS, RouterScores, routed_width
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.passes.fuse import fuse
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import INT8, TargetSpec
from tests.passes.operator_modules import F32, Tensors, call, kinds, module, weights

EPS, ROW, EXPERTS = 1e-6, ((1, 64), F32), 8
LAYOUT = WeightLayout(4, "float16", 32, 64, (96,))
ROUTED = ((1, routed_width(EXPERTS, 64)), F32)
WEBGPU, CPU = target_spec("webgpu"), target_spec("cpu")


def linear(x: Tensors, hidden: nn.Tensor, layout: WeightLayout = LAYOUT) -> list[nn.Tensor]:
    operator = Linear(rows=ONE, in_dtype=hidden.dtype, layout=layout)
    args = [hidden, *(x[name] for name, _, _ in layout.shapes())]
    return call(operator, args, ((1, layout.rows), F32))


def norm_and_matmul() -> tvm.IRModule:
    names = ("branch", "residual", "w_branch", "w_next")
    vector = ((64,), F32)
    inputs = dict(zip(names, (ROW, ROW, vector, vector), strict=True))

    def body(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, "float16")
        residual, hidden = call(norm, [x[n] for n in names], ROW, ((1, 64), "float16"))
        return [residual, *linear(x, hidden)]

    return module({**inputs, **weights(LAYOUT)}, body)


def norm_scores_and_matmul() -> tvm.IRModule:
    inputs = {
        "branch": ROW,
        "residual": ROW,
        "vectors": ((VECTORS, 64), F32),
        "projection": ((EXPERTS, 64), "float16"),
        **weights(LAYOUT),
    }

    def body(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, "float16", VECTORS)
        args = [x[name] for name in ("branch", "residual", "vectors")]
        residual, hidden = call(norm, args, ROW, ((1, 64), "float16"))
        results = linear(x, hidden)
        scores = RouterScores(64, EXPERTS, EPS, 0.125, "float16")
        (routed,) = call(scores, [residual, x["vectors"], x["projection"]], ROUTED)
        return [residual, routed, *results]

    return module(inputs, body)


def int8(target: TargetSpec) -> TargetSpec:
    return replace(target, activations=INT8)


def narrow(target: TargetSpec) -> TargetSpec:
    """A target where no vector fits into shared memory."""
    return replace(target, max_shared_memory_bytes=0)


@pytest.mark.parametrize(
    ("target", "launches"),
    [
        (WEBGPU, ["normed_linear"]),
        (CPU, ["normed_linear"]),
        (int8(WEBGPU), ["normed_int8_linear"]),
        (narrow(WEBGPU), ["residual_norm", "linear"]),
        # Quantised all the same, in the launch of the norm.
        (narrow(int8(WEBGPU)), ["quantized_norm", "int8_linear"]),
    ],
)
def test_a_norm_and_its_matmul(target: TargetSpec, launches: list[str]) -> None:
    assert kinds(fuse(norm_and_matmul(), target)) == launches


@pytest.mark.parametrize(
    ("target", "launches"),
    [
        (WEBGPU, ["routed_normed_linear"]),
        (CPU, ["routed_normed_linear"]),
        (int8(CPU), ["routed_normed_int8_linear"]),
        (replace(WEBGPU, max_storage_buffers=8), ["residual_norm", "linear", "router_scores"]),
    ],
)
def test_the_router_takes_its_norm_before_the_matmul_does(
    target: TargetSpec, launches: list[str]
) -> None:
    assert kinds(fuse(norm_scores_and_matmul(), target)) == launches


def test_what_a_kernel_cannot_bind_is_split_last() -> None:
    layout = WeightLayout(4, "float16", 32, 64, (32, 32, 32))
    inputs = {"x": ((1, 64), "float16"), **weights(layout)}
    before = module(inputs, lambda x: linear(x, x["x"], layout))
    few = replace(WEBGPU, max_storage_buffers=4)
    assert kinds(fuse(before, few)) == ["linear"] * 3 + ["relax.concat"]
    assert kinds(fuse(before, int8(few)))[:3] == ["int8_linear"] * 3
    assert kinds(fuse(before, WEBGPU)) == ["linear"]


def test_the_module_that_is_given_stays_as_it_is() -> None:
    before = norm_and_matmul()
    fuse(before, WEBGPU)
    assert kinds(before) == ["residual_norm", "linear"]
