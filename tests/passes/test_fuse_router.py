"""Before and Expected of the router's scores in the launch of gate and up."""

from collections.abc import Callable

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import VECTORS, RouterScores, routed_width
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Routed
from gemma4_compile.operators.rows import ONE
from gemma4_compile.passes.fuse_norm_linear import fuse_norm_linear
from gemma4_compile.passes.fuse_router import fuse_router
from gemma4_compile.passes.fusion_limits import FusionLimits
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
EXPERTS, EPS, FACTOR = 8, 1e-6, 0.125
ROW = ((1, 64), F32)
INPUTS = {
    "branch": ROW,
    "residual": ROW,
    "vectors": ((VECTORS, 64), F32),
    "projection": ((EXPERTS, 64), "float16"),
    **weights(LAYOUT),
}
NAMES = ("q_weight0", "q_scale0")
ROUTED = ((1, routed_width(EXPERTS, 64)), F32)


def before(kind: Callable[..., Linear] = Linear) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, "float16", VECTORS)
        args = [x[name] for name in ("branch", "residual", "vectors")]
        residual, hidden = call(norm, args, ROW, ((1, 64), "float16"))
        matmul = kind(rows=ONE, in_dtype="float16", layout=LAYOUT)
        (y,) = call(matmul, [hidden, *(x[name] for name in NAMES)], ((1, 96), F32))
        scores = RouterScores(64, EXPERTS, EPS, FACTOR, "float16")
        (routed,) = call(scores, [residual, x["vectors"], x["projection"]], ROUTED)
        return [residual, routed, y]

    return module(INPUTS, body)


@pytest.mark.parametrize(("kind", "dtype"), [(Linear, "float16"), (int8_linear, F32)])
def test_norm_scores_and_matmul_are_one_launch(kind: Callable[..., Linear], dtype: str) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        routed = Routed(EPS, EXPERTS, FACTOR, "float16")
        operator = kind(ONE, LAYOUT, dtype, prologue=routed)
        args = [x[n] for n in ("branch", "residual", "vectors", "projection", *NAMES)]
        return call(operator, args, ROW, ROUTED, ((1, 96), F32))

    after = rewritten(before(kind), FusionLimits(max_buffers=9), fuse_router)
    assert_same(after, module(INPUTS, expected))


def test_without_room_for_its_buffers_all_three_stay() -> None:
    limits = FusionLimits(max_buffers=8)
    after = rewritten(before(), limits, fuse_router, fuse_norm_linear)
    assert kinds(after) == ["residual_norm", "linear", "router_scores"]
