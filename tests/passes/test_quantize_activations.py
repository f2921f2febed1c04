"""Before and Expected of dynamic activation quantisation."""

import dataclasses
from collections.abc import Callable

import pytest
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.operators.activation_quantization import (
    QuantizeRows,
    quantized_specs,
)
from gemma4_compile.operators.activations import PACKED, PackedOutput, SteppedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import VECTORS, TopKExperts, routed_width
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from gemma4_compile.passes.fuse_norm_linear import fuse_norm_linear
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.quantize_activations import quantize_activations, quantize_unfused
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

LAYOUT = WeightLayout(4, "float16", 32, 64, (128,))
EPS = 1e-6
ROW, OUT = ((1, 64), F32), ((1, 128), F32)
NAMES = ("q_weight0", "q_scale0")
LIMITS = FusionLimits(max_buffers=None, int8=True)
BOTH = (quantize_activations, quantize_unfused)


def matmul(
    kind: Callable[..., Linear], x: Tensors, args: list[nn.Tensor], dtype: str, rows: Rows = ONE
) -> nn.Tensor:
    operator = kind(rows=rows, in_dtype=dtype, layout=LAYOUT)
    shape = ((args[0].shape[0], 128), F32)
    return call(operator, [*args, *(x[name] for name in NAMES)], shape)[0]


def test_one_position_is_rounded_by_its_matmul() -> None:
    inputs = {"x": ROW, **weights(LAYOUT)}
    before = module(inputs, lambda x: [matmul(Linear, x, [x["x"]], F32)])
    expected = module(inputs, lambda x: [matmul(int8_linear, x, [x["x"]], F32)])
    assert_same(rewritten(before, LIMITS, *BOTH), expected)


@pytest.mark.parametrize("rows", [ONE, CHUNK])
def test_steps_of_the_checkpoint_are_kept(rows: Rows) -> None:
    inputs = {"x": ROW, **weights(LAYOUT), "steps": ((2,), F32)}

    def stepped(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(rows, LAYOUT, F32, output=SteppedOutput((128,)))
        return call(operator, [x[name] for name in ("x", *NAMES, "steps")], OUT)

    before = module(inputs, stepped)
    assert_same(rewritten(before, LIMITS, *BOTH), module(inputs, stepped))


@pytest.mark.parametrize(
    ("layout", "limits"),
    [
        (LAYOUT, dataclasses.replace(LIMITS, int8=False)),
        (LAYOUT, dataclasses.replace(LIMITS, width=63)),
        (WeightLayout(0, "float16", 0, 64, (128,)), LIMITS),
        (WeightLayout(4, "float16", 64, 64, (128,)), LIMITS),
    ],
    ids=["off", "shared memory", "dense weights", "groups of 64"],
)
def test_others_keep_their_vector(layout: WeightLayout, limits: FusionLimits) -> None:
    def body(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(rows=ONE, in_dtype=F32, layout=layout)
        return call(operator, [x[name] for name in ("x", *weights(layout))], OUT)

    before = module({"x": ROW, **weights(layout)}, body)
    assert_same(rewritten(before, limits, *BOTH), before)


def test_a_chunk_is_quantised_in_a_launch_of_its_own() -> None:
    n = tirx.Var("n", "int64")
    inputs = {"x": ((n, 64), "float16"), **weights(LAYOUT)}

    def expected(x: Tensors) -> list[nn.Tensor]:
        quantize = QuantizeRows(CHUNK, 64, "float16", PackedOutput(True))
        packed = call(quantize, [x["x"]], *quantized_specs(64, x["x"].shape[0]))
        return [matmul(int8_linear, x, packed, PACKED, CHUNK)]

    before = module(inputs, lambda x: [matmul(Linear, x, [x["x"]], "float16", CHUNK)])
    assert_same(rewritten(before, LIMITS, *BOTH), module(inputs, expected))


def test_a_norm_that_nothing_fused_quantises_its_result() -> None:
    names = ("branch", "residual", "w_branch", "w_next")
    inputs = {name: ROW if i < 2 else ((64,), F32) for i, name in enumerate(names)}

    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, F32)
        residual, hidden = call(norm, [x[name] for name in names], ROW, ROW)
        return [residual, matmul(Linear, x, [hidden], F32)]

    def expected(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, "float32", output=PackedOutput(True))
        made = call(norm, [x[name] for name in names], ROW, *quantized_specs(64))
        return [made[0], matmul(int8_linear, x, made[1:], PACKED)]

    every = {**inputs, **weights(LAYOUT)}
    narrow = dataclasses.replace(LIMITS, width=63)  # too little shared memory for any fusion
    passes = (quantize_activations, fuse_norm_linear, quantize_unfused)
    assert_same(rewritten(module(every, before), narrow, *passes), module(every, expected))
    assert kinds(rewritten(module(every, before), LIMITS, *passes)) == ["normed_int8_linear"]


def test_a_norm_of_stacked_weights_is_quantised_behind_it() -> None:
    inputs = {"branch": ROW, "residual": ROW, "vectors": ((VECTORS, 64), F32), **weights(LAYOUT)}

    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, F32, VECTORS)
        args = [x[name] for name in ("branch", "residual", "vectors")]
        residual, hidden = call(norm, args, ROW, ROW)
        return [residual, matmul(Linear, x, [hidden], F32)]

    after = rewritten(module(inputs, before), LIMITS, *BOTH)
    assert kinds(after) == ["residual_norm", "quantize_rows", "int8_linear"]


@pytest.mark.parametrize(
    ("head_dim", "expected"),
    [
        (32, ["quantized_combine", "int8_linear"]),
        (16, ["combine_splits", "quantize_rows", "int8_linear"]),
    ],
)
def test_a_combine_that_nothing_fused_quantises_whole_groups(
    head_dim: int, expected: list[str]
) -> None:
    heads = 64 // head_dim
    inputs = {
        "o_partial": ((2, heads, head_dim), "float16"),
        "split_lse": ((2, heads, 2), F32),
        **weights(LAYOUT),
    }

    def before(x: Tensors) -> list[nn.Tensor]:
        combine = CombineSplits(heads, head_dim, 2, "float16")
        hidden = call(combine, [x["o_partial"], x["split_lse"]], ((1, 64), "float16"))
        return [matmul(Linear, x, hidden, "float16")]

    after = rewritten(module(inputs, before), LIMITS, *BOTH)
    assert kinds(after) == expected
    operators = {
        "quantized_combine": CombineSplits(heads, head_dim, 2, "float16", output=PackedOutput(True))
    }
    if expected[0] in operators:
        assert operators[expected[0]].name in {var.name_hint for var in after.get_global_vars()}


DOWN = WeightLayout(8, "float16", 32, 64, (32,))


def mlp(x: Tensors, readers: int) -> list[nn.Tensor]:
    up = Linear(rows=ONE, in_dtype=F32, epilogue=Epilogue.GELU_PAIRS.value, layout=LAYOUT)
    (gated,) = call(up, [x["x"], *(x[name] for name in NAMES)], ROW)
    down = Linear(rows=ONE, in_dtype=F32, layout=DOWN)
    args = [gated, x["down_weight"], x["down_scale"]]
    return [call(down, args, ((1, 32), F32))[0] for _ in range(readers)]


def mlp_inputs() -> dict[str, tuple[tuple[int, ...], str]]:
    weight, scale = weights(DOWN).values()
    return {
        "x": ROW,
        **weights(LAYOUT),
        "down_weight": weight,
        "down_scale": scale,
    }


def test_gate_and_up_leave_their_product_quantised_for_down() -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        up = int8_linear(
            rows=ONE,
            in_dtype=F32,
            epilogue=Epilogue.GELU_PAIRS.value,
            packed_out=True,
            interleaved_out=False,
            layout=LAYOUT,
        )
        packed = call(up, [x["x"], *(x[name] for name in NAMES)], *quantized_specs(64))
        down = int8_linear(rows=ONE, in_dtype=PACKED, layout=DOWN)
        return call(down, [*packed, x["down_weight"], x["down_scale"]], ((1, 32), F32))

    before = module(mlp_inputs(), lambda x: mlp(x, readers=1))
    assert_same(rewritten(before, LIMITS, *BOTH), module(mlp_inputs(), expected))


def test_a_product_with_two_readers_stays_float() -> None:
    after = rewritten(module(mlp_inputs(), lambda x: mlp(x, readers=2)), LIMITS, *BOTH)
    assert kinds(after) == ["int8_linear"] * 3


EXPERTS, TOP_K = 4, 2
EXPERT_UP = WeightLayout(4, "float16", 32, 64, (EXPERTS * 64,))
EXPERT_DOWN = WeightLayout(4, "float16", 32, 32, (EXPERTS * 64,))


def experts(x: Tensors) -> list[nn.Tensor]:
    choice = TopKExperts(EXPERTS, TOP_K, 64)
    ids, chosen = call(choice, [x["routed"], x["scale"]], ((1, TOP_K), "int32"), ((1, TOP_K), F32))
    up = ExpertLinear(EXPERT_UP, expert_rows=64, experts=EXPERTS, top_k=TOP_K, in_dtype=F32)
    (gated,) = call(up, [x["routed"], ids, x["up_weight"], x["up_scale"]], ((TOP_K, 32), F32))
    down = ExpertLinear(
        EXPERT_DOWN, expert_rows=64, experts=EXPERTS, top_k=TOP_K, in_dtype=F32, epilogue="none"
    )
    return call(down, [gated, ids, chosen, x["down_weight"], x["down_scale"]], ROW)


EXPERT_INPUTS = {
    "routed": ((1, routed_width(EXPERTS, 64)), F32),
    "scale": ((EXPERTS,), F32),
    **{
        f"{name}_{part}": (shape, dtype)
        for name, layout in (("up", EXPERT_UP), ("down", EXPERT_DOWN))
        for part, (_, shape, dtype) in zip(("weight", "scale"), layout.shapes(), strict=True)
    },
}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (LIMITS, ["int8_expert_gate_up", "int8_expert_down"]),
        (
            dataclasses.replace(LIMITS, max_buffers=8),
            ["int8_expert_gate_up", "int8_expert_down"],
        ),
        (
            dataclasses.replace(LIMITS, max_buffers=7),
            ["top_k_experts", "expert_gate_up", "expert_down"],
        ),
    ],
)
def test_chosen_experts_choose_for_themselves(limits: FusionLimits, expected: list[str]) -> None:
    after = rewritten(module(EXPERT_INPUTS, experts), limits, *BOTH)
    assert kinds(after) == expected
