"""Before and Expected of experts in functions with a few rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.operators.activation_quantization import QuantizeRows, quantized_specs
from gemma4_compile.operators.activations import FLOATS, INT8, PACKED, PackedOutput
from gemma4_compile.operators.base import Operator, TensorSpec
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.few_row_expert_norms import (
    QuantizedBranchNorms,
)
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.moe import (
    EXPERT_TILE,
    VECTORS,
    CombineExperts,
    PermuteByExpert,
    Router,
    RouterScores,
    TopKExperts,
)
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.passes.few_row_experts import few_row_experts
from gemma4_compile.passes.split_matmuls import split_matmuls
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
from tests.passes.test_few_rows import LIMITS, MOST, ROWS, N, of_few_rows

PAIRS, NO_EPILOGUE = Epilogue.GELU_PAIRS.value, Epilogue.NONE.value
EXPERTS, TOP_K = 6, 2
UP = WeightLayout(4, "float16", 32, 64, (64 * 4, 64 * 2))
DOWN = WeightLayout(4, "float16", 32, 32, (64 * 6,))
EXPERT_INPUTS: dict[str, TensorSpec] = {
    "x": ((N, 64), F32),
    "ids": ((N, TOP_K), "int32"),
    **{f"up_{name}": spec for name, spec in weights(UP).items()},
    **{f"down_{name}": spec for name, spec in weights(DOWN).items()},
}
GATED, OUTPUTS = ((N * TOP_K, 32), F32), ((N * TOP_K, 64), F32)
PACKED_GATED = quantized_specs(32, N * TOP_K)


def of_experts(
    x: Tensors, matmul: Callable[[str, WeightLayout], Operator], choice: list[nn.Tensor], int8: bool
) -> list[nn.Tensor]:
    """Gate and up, and down, each on vectors that were rounded before if they are of int8."""
    up = [x[f"up_{name}"] for name in weights(UP)]
    down = [x[f"down_{name}"] for name in weights(DOWN)]
    left = [x["x"]]
    if int8:
        left = call(QuantizeRows(CHUNK, 64, F32, PackedOutput(True)), left, *quantized_specs(64, N))
    left = call(matmul(PAIRS, UP), [*left, *choice, *up], GATED)
    if int8:
        left = call(QuantizeRows(CHUNK, 32, F32, PackedOutput(True)), left, *PACKED_GATED)
    return call(matmul(NO_EPILOGUE, DOWN), [*left, *choice, *down], OUTPUTS)


def chunk_of_experts(int8: bool) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        permute = PermuteByExpert(EXPERTS, TOP_K, EXPERT_TILE)
        specs = ((N * TOP_K,), "int32"), ((permute.tile_count(N * TOP_K), 3), "int32")
        form, dtype = (INT8, PACKED) if int8 else (FLOATS, F32)

        def matmul(epilogue: str, layout: WeightLayout) -> Operator:
            return ExpertLinear(
                layout, 64, EXPERTS, TOP_K, dtype, epilogue=epilogue, activations=form, rows=CHUNK
            )

        return of_experts(x, matmul, call(permute, [x["ids"]], *specs), int8)

    return of_few_rows(module(EXPERT_INPUTS, body))


@pytest.mark.parametrize("int8", [False, True])
def test_experts_are_found_by_their_ids(int8: bool) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        form, dtype = (INT8, PACKED) if int8 else (FLOATS, F32)

        def matmul(epilogue: str, layout: WeightLayout) -> Operator:
            operator = ExpertLinear(layout, 64, EXPERTS, TOP_K, dtype, rows=Few(MOST))
            return replace(operator, epilogue=epilogue, activations=form)

        if not int8:
            return of_experts(x, matmul, [x["ids"]], int8)
        up = [x[f"up_{name}"] for name in weights(UP)]
        down = [x[f"down_{name}"] for name in weights(DOWN)]
        packed = call(
            QuantizeRows(CHUNK, 64, F32, PackedOutput(True)), [x["x"]], *quantized_specs(64, N)
        )
        gate_up = matmul(PAIRS, UP)
        assert isinstance(gate_up, ExpertLinear)
        gate_up = replace(gate_up, output=PackedOutput(interleaved=True))
        product = call(gate_up, [*packed, x["ids"], *up], *PACKED_GATED)
        return call(matmul(NO_EPILOGUE, DOWN), [*product, x["ids"], *down], OUTPUTS)

    after = rewritten(chunk_of_experts(int8), LIMITS, few_row_experts)
    assert_same(after, of_few_rows(module(EXPERT_INPUTS, expected)))


def test_experts_that_are_too_many_buffers_take_several_calls() -> None:
    after = rewritten(chunk_of_experts(int8=False), replace(LIMITS, max_buffers=6), few_row_experts)
    assert kinds(after) == ["few_row_experts"] * 2
    divided = rewritten(after, replace(LIMITS, max_buffers=6), split_matmuls)
    assert kinds(divided) == ["few_row_experts"] * 3


NORM_INPUTS: dict[str, TensorSpec] = {
    "y": ROWS,
    "residual": ROWS,
    "vectors": ((VECTORS, 64), F32),
    "projection": ((EXPERTS, 64), "float16"),
    "expert_scale": ((EXPERTS,), F32),
}
CHOICE = ((N, TOP_K), "int32"), ((N, TOP_K), F32), ROWS
ROUTER = Router(CHUNK, 64, EXPERTS, TOP_K, 1e-6, 0.125, "float16", F32)
ROUTED = ("vectors", "projection", "expert_scale")


def halves_of_router(args: list[nn.Tensor], dtype: str | None) -> list[nn.Tensor]:
    *scored, expert_scale = args
    first = RouterScores(64, EXPERTS, 1e-6, 0.125, "float16", dtype, Few(MOST))
    scores, *hidden = call(first, scored, ((N, EXPERTS), F32), *([] if dtype is None else [ROWS]))
    return (
        call(TopKExperts(EXPERTS, TOP_K, 64, Few(MOST)), [scores, expert_scale], *CHOICE[:2])
        + hidden
    )


def test_both_branches_inputs_are_rounded_by_the_norm_before_them() -> None:
    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(CHUNK, 64, 1e-6, False, F32, VECTORS)
        args = [x[name] for name in ("y", "residual", "vectors")]
        residual, hidden = call(norm, args, ROWS, ROWS)
        dense = call(
            QuantizeRows(CHUNK, 64, F32, PackedOutput(True)), [hidden], *quantized_specs(64, N)
        )
        routed = [residual, *(x[name] for name in ROUTED)]
        ids, shares, normed = call(ROUTER, routed, *CHOICE)
        experts = call(
            QuantizeRows(CHUNK, 64, F32, PackedOutput(False)), [normed], *quantized_specs(64, N)
        )
        return [residual, *dense, ids, shares, *experts]

    packed = quantized_specs(64, N)

    def expected(x: Tensors) -> list[nn.Tensor]:
        norms = QuantizedBranchNorms(64, 1e-6, True, False, Few(MOST), EXPERTS, 0.125, "float16")
        args = [x[name] for name in ("y", "residual", "vectors", "projection")]
        *normed, scores = call(norms, args, ROWS, *packed, *packed, ((N, EXPERTS), F32))
        choice = TopKExperts(EXPERTS, TOP_K, 64, Few(MOST))
        chosen = call(choice, [scores, x["expert_scale"]], *CHOICE[:2])
        return [*normed[:3], *chosen, *normed[3:]]

    def expected_of_nine(x: Tensors) -> list[nn.Tensor]:
        norms = QuantizedBranchNorms(64, 1e-6, True, False, Few(MOST))
        args = [x[name] for name in ("y", "residual", "vectors")]
        residual, *rounded = call(norms, args, ROWS, *packed, *packed)
        routed = [residual, *(x[name] for name in ROUTED)]
        ids, shares = halves_of_router(routed, None)
        return [residual, *rounded[:2], ids, shares, *rounded[2:]]

    few = of_few_rows(module(NORM_INPUTS, before))
    for most, whole in ((10, expected), (9, expected_of_nine)):
        after = rewritten(few, replace(LIMITS, max_buffers=most), few_row_experts)
        assert_same(after, of_few_rows(module(NORM_INPUTS, whole)))
    narrow = rewritten(few, replace(LIMITS, max_buffers=7), few_row_experts)
    router = ["few_row_router_scores", "few_row_top_k_experts"]
    assert kinds(narrow) == ["residual_norm", "quantize_rows", *router, "quantize_rows"]


def test_a_router_whose_row_is_read_writes_it() -> None:
    inputs = {"residual": ROWS, **{name: NORM_INPUTS[name] for name in ROUTED}}

    def before(x: Tensors) -> list[nn.Tensor]:
        return call(ROUTER, [x[name] for name in inputs], *CHOICE)

    def expected(x: Tensors) -> list[nn.Tensor]:
        return halves_of_router([x[name] for name in inputs], F32)

    after = rewritten(of_few_rows(module(inputs, before)), LIMITS, few_row_experts)
    assert_same(after, of_few_rows(module(inputs, expected)))


END_INPUTS: dict[str, TensorSpec] = {
    "dense": ROWS,
    "outputs": ((N * TOP_K, 64), F32),
    "shares": ((N, TOP_K), F32),
    "residual": ROWS,
    "w_branches": ((3, 64), F32),
    "scalar": ((1,), F32),
    "w_next": ((64,), F32),
}


def end_of_layer(int8: bool) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        dense, outputs, shares, *others = (x[name] for name in END_INPUTS)
        (chosen,) = call(CombineExperts(CHUNK, TOP_K, 64), [outputs, shares], ROWS)
        norm = ResidualNorm(CHUNK, 64, 1e-6, True, F32, branches=2)
        residual, hidden = call(norm, [dense, chosen, *others], ROWS, ROWS)
        if not int8:
            return [residual, hidden]
        rounding = QuantizeRows(CHUNK, 64, F32, PackedOutput(True))
        return [residual, *call(rounding, [hidden], *quantized_specs(64, N))]

    return of_few_rows(module(END_INPUTS, body))


@pytest.mark.parametrize("int8", [False, True])
def test_the_norm_after_a_layer_adds_its_experts_up(int8: bool) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        args = [x[name] for name in END_INPUTS]
        if not int8:
            return call(
                ResidualNorm(Few(MOST), 64, 1e-6, True, F32, branches=2, top_k=TOP_K),
                args,
                ROWS,
                ROWS,
            )
        operator = ResidualNorm(
            Few(MOST), 64, 1e-6, True, "float32", branches=2, top_k=TOP_K, output=PackedOutput(True)
        )
        return call(operator, args, ROWS, *quantized_specs(64, N))

    after = rewritten(end_of_layer(int8), LIMITS, few_row_experts)
    assert_same(after, of_few_rows(module(END_INPUTS, expected)))


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        (8, ["combine_experts", "expert_residual_norm", "quantize_rows"]),
        (9, ["few_row_expert_norm", "quantize_rows"]),
        (10, ["few_row_expert_norm"]),
    ],
)
def test_as_far_as_its_buffers_go(buffers: int, expected: list[str]) -> None:
    limits = replace(LIMITS, max_buffers=buffers)
    assert kinds(rewritten(end_of_layer(int8=True), limits, few_row_experts)) == expected
